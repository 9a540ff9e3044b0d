//! The answers of `docs/recipes.md` about jobs of several types and their payloads. `cargo run -p examples --example
//! jobs` runs them on a store in memory, and checks what they do.

use std::sync::Arc;
use std::time::Duration;

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{Key, XChaCha20Poly1305};
use export_queue::hc_dequeue::{
    Call, Delivery, Enqueue, Handler, Handlers, Job, JobOptions, Jobs, Outcome, Queue, Result,
    Settings, WorkerOptions,
};
use export_queue::keyspace::codec::{Codec, DecodeError, MessagePack};
use export_queue::keyspace::{
    self, Bytes, Database, Environment, Isolation, OpenOptions, Runner, Store, Subspace,
    Transaction, Tx,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct SendMail {
    to: String,
}

impl Job for SendMail {
    const KIND: &'static str = "send-mail";

    fn options() -> JobOptions {
        JobOptions::new()
            .with_max_attempts(5)
            .with_time_limit(Duration::from_secs(30))
    }
}

#[derive(Serialize, Deserialize)]
struct Charge {
    cents: u64,
}

impl Job for Charge {
    const KIND: &'static str = "charge";

    fn options() -> JobOptions {
        JobOptions::new().with_priority(3)
    }
}

/// The server that takes mails.
#[derive(Default)]
struct MailServer {
    sent: Mutex<Vec<String>>,
}

struct Mailer(Arc<MailServer>);

impl Handler<SendMail> for Mailer {
    type Output = Result<()>;

    async fn handle(&self, mail: Delivery<SendMail>) -> Result<()> {
        self.0.sent.lock().push(mail.value().to.clone());
        Ok(())
    }
}

async fn charge<Tr: Transaction>(tr: Tx<Tr>, charge: Delivery<Charge>) -> keyspace::Result<()> {
    let charged = tr.get(b"charged", Isolation::Serializable).await?;
    let charged = charged.map_or(0, |sum| sum.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
    let sum = charged + charge.value().cents;
    tr.set(b"charged", &sum.to_be_bytes());
    Ok(())
}

async fn take_an_order(tr: &impl Transaction, jobs: &Jobs, to: &str, cents: u64) -> Result<()> {
    jobs.enqueue(tr, &Charge { cents }).await?;
    let mail = SendMail { to: to.to_owned() };
    let later = Enqueue::new().with_delay(Duration::from_millis(1));
    let _ = jobs.enqueue_with(tr, &mail, later).await?;
    Ok(())
}

fn handlers<D: Database>(server: Arc<MailServer>) -> Handlers<D> {
    Handlers::new()
        .work(Mailer(server))
        .process(charge)
        .around(async |call: Call| {
            let kind = call.kind().to_owned();
            let outcome = call.run().await;
            if let Outcome::Retry { reason, .. } = &outcome {
                println!("{kind}: {reason}");
            }
            outcome
        })
}

async fn run_several_types(runner: &Runner<Store>) -> Result<()> {
    let jobs = &Jobs::open(runner, "jobs").await?;
    let server = Arc::new(MailServer::default());
    let worker = jobs
        .work(runner, WorkerOptions::new(), handlers(server.clone()))
        .await?;
    runner
        .run(async |tr| take_an_order(&tr, jobs, "ada@example.com", 4_200).await)
        .await?;
    jobs.queue().wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(1)).await?;
    assert_eq!(*server.sent.lock(), ["ada@example.com"]);
    let charged = runner.run(async |tr| tr.get(b"charged", Isolation::Snapshot).await);
    let charged = charged.await?.expect("it was charged");
    assert_eq!(charged[..], 4_200_u64.to_be_bytes());
    Ok(())
}

/// A job of the version before.
#[derive(Serialize, Deserialize)]
struct ResizeV1 {
    image: String,
}

impl Job for ResizeV1 {
    const KIND: &'static str = "resize";
}

#[derive(Serialize, Deserialize)]
struct Resize {
    image: String,
    width: u32,
    /// A field that was added later, and that older jobs do not have.
    #[serde(default)]
    is_grey: bool,
}

impl Job for Resize {
    const KIND: &'static str = "resize/2";
}

impl From<&ResizeV1> for Resize {
    fn from(old: &ResizeV1) -> Self {
        Self {
            image: old.image.clone(),
            width: 100,
            is_grey: false,
        }
    }
}

fn resize(resized: &Mutex<Vec<String>>, job: &Resize) {
    let Resize { image, width, .. } = job;
    resized.lock().push(format!("{image} to {width}"));
}

async fn handle_two_versions(runner: &Runner<Store>) -> Result<()> {
    let jobs = &Jobs::open(runner, "images").await?;
    let image = || "17.png".to_owned();
    jobs.submit(runner, &ResizeV1 { image: image() }).await?;
    let new = Resize {
        image: image(),
        width: 640,
        is_grey: true,
    };
    jobs.submit(runner, &new).await?;

    let resized = Arc::new(Mutex::new(Vec::new()));
    let (of_old, of_new) = (resized.clone(), resized.clone());
    let handlers = Handlers::new()
        .work(move |job: Delivery<ResizeV1>| {
            resize(&of_old, &job.value().into());
            async {}
        })
        .work(move |job: Delivery<Resize>| {
            resize(&of_new, job.value());
            async {}
        });
    let options = WorkerOptions::new().with_concurrency(1);
    let worker = jobs.work(runner, options, handlers).await?;
    jobs.queue().wait_idle(runner).await?;
    worker.shut_down(Duration::from_secs(1)).await?;
    assert_eq!(*resized.lock(), ["17.png to 100", "17.png to 640"]);
    Ok(())
}

/// Encrypts what `MessagePack` encodes: a nonce of 24 random bytes, then the ciphertext with its tag of 16 bytes.
#[derive(Clone)]
struct Encrypted(XChaCha20Poly1305);

impl<T> Codec<T> for Encrypted
where
    MessagePack: Codec<T>,
{
    const NAME: &'static str = "encrypted MessagePack";

    fn encode(&self, value: &T, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        let mut plain = Vec::new();
        MessagePack.encode(value, &mut plain)?;
        let nonce: [u8; 24] = Environment::system().random_bytes();
        let sealed = self.0.encrypt(&nonce.into(), &*plain);
        buffer.extend_from_slice(&nonce);
        buffer.extend_from_slice(&sealed.expect("a payload is short enough for the cipher"));
        Ok(())
    }

    fn decode(&self, bytes: Bytes) -> Result<T, DecodeError> {
        let refused = |reason: &str| DecodeError {
            codec: <Self as Codec<T>>::NAME,
            reason: reason.to_owned(),
        };
        let (nonce, sealed) = bytes
            .split_first_chunk::<24>()
            .ok_or_else(|| refused("it has no nonce"))?;
        let opened = self.0.decrypt(&(*nonce).into(), sealed);
        let plain = opened.map_err(|_| refused("the key is another one, or it was changed"))?;
        MessagePack.decode(plain.into())
    }
}

async fn encrypt_payloads(
    runner: &Runner<Store>,
    key: [u8; 32],
) -> Result<Queue<String, Encrypted>> {
    let codec = Encrypted(XChaCha20Poly1305::new(&Key::from(key)));
    let options = OpenOptions::new().with_codec(codec);
    let subspace = Subspace::from("letters");
    Queue::open_with(runner, subspace, Settings::new(), options).await
}

async fn read_and_refuse(runner: &Runner<Store>) -> Result<()> {
    let letters = encrypt_payloads(runner, [7; 32]).await?;
    let letter = "in confidence".to_owned();
    let item = &letters.submit(runner, &letter).await?;
    let status = runner
        .run(async |tr| letters.status(&tr, item).await)
        .await?;
    assert_eq!(status.expect("it waits").value, Ok(letter));
    let other = encrypt_payloads(runner, [8; 32]).await?;
    let status = runner.run(async |tr| other.status(&tr, item).await).await?;
    let refused = status.expect("it waits").value.expect_err("another key");
    assert!(refused.reason.contains("another one"));
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runner = Runner::new(keyspace::open("memory:")?);
    run_several_types(&runner).await?;
    handle_two_versions(&runner).await?;
    read_and_refuse(&runner).await?;
    println!("each type has its handler, and both versions were read");
    Ok(())
}
