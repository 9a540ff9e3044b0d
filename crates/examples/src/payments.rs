//! Books payments: one transaction acknowledges a payment, changes a balance and enqueues a receipt. Each payment is
//! booked exactly once and gets one receipt, even if processes die at any moment.

use std::time::Duration;

use hc_dequeue::keyspace::{Isolation, MutationOp, Runner, Store, Subspace, Transaction, Tx};
use hc_dequeue::{Delivery, Error, Queue, Result, WorkerOptions};

use crate::say;

/// A payment: the account and the amount.
type Payment = (String, i64);

const PAYMENTS: i64 = 100;

/// Enqueues payments and books each of them.
///
/// # Errors
/// Those of the queue.
pub async fn run(runner: &Runner<Store>, shop: &Subspace) -> Result<()> {
    let payments = Queue::<Payment>::open(runner, shop.subspace(&"payments")).await?;
    let receipts = Queue::<String>::open(runner, shop.subspace(&"receipts")).await?;

    let pay = |tr| {
        let payments = &payments;
        async move {
            for amount in 1..=PAYMENTS {
                payments.enqueue(&tr, &("Ada".to_owned(), amount)).await?;
            }
            Ok::<_, Error>(())
        }
    };
    runner.run(pay).await?;

    let handler = {
        let runner = runner.clone();
        let shop = shop.clone();
        let receipts = receipts.clone();
        move |payment: Delivery<Payment>| {
            let runner = runner.clone();
            let shop = shop.clone();
            let receipts = receipts.clone();
            async move { book(&runner, &shop, &receipts, &payment).await }
        }
    };
    let worker = payments
        .work(runner, WorkerOptions::default(), handler)
        .await?;

    // Receipts are printed as payments are booked.
    let printer = receipts.consumer(runner, WorkerOptions::default()).await?;
    for _ in 0..PAYMENTS {
        if let Some(receipt) = printer.dequeue_within(Duration::from_secs(60)).await? {
            say(receipt.value());
            receipt.complete().await?;
        }
    }
    payments.wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(60)).await?;
    printer.shut_down(Duration::ZERO).await?;
    // Earlier runs have paid as much, even those that were killed.
    let paid = balance(runner, shop, "Ada").await?;
    assert!(
        paid > 0 && paid % (1..=PAYMENTS).sum::<i64>() == 0,
        "{paid}"
    );
    Ok(())
}

/// Returns how much a customer has paid.
async fn balance(runner: &Runner<Store>, shop: &Subspace, customer: &str) -> Result<i64> {
    let key = &shop.pack(&("balance", customer));
    let read = async |tr: Tx<_>| Ok::<_, Error>(tr.get(key, Isolation::Snapshot).await?);
    let paid = runner.run(read).await?;
    Ok(paid.map_or(0, |paid| {
        i64::from_le_bytes(paid[..].try_into().expect("only `Add` writes it"))
    }))
}

/// Books a payment, completely or not at all.
async fn book(
    runner: &Runner<Store>,
    shop: &Subspace,
    receipts: &Queue<String>,
    payment: &Delivery<Payment>,
) -> Result<()> {
    let (customer, amount) = payment.value();
    let balance = &shop.pack(&("balance", customer.as_str()));
    let receipt = &format!("{customer} paid {amount}");
    runner
        .run(async |tr| {
            // Fails if another worker holds the payment. Then nothing of this transaction is committed.
            payment.ack(&tr).await?;
            tr.atomic(MutationOp::Add, balance, &amount.to_le_bytes());
            receipts.enqueue(&tr, receipt).await?;
            Ok(())
        })
        .await
}
