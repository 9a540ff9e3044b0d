//! The web process and the workers of the example, on one file: each is killed and stopped in turn, and so is the one
//! that owns the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem::take;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::process::{get, join, misaccounted};
use conformance::{HANG, timeout, until};
use futures::future::join_all;
use hc_dequeue::Queue;
use keyspace::{Code, Isolation, RangeQuery, Runner, Store, Subspace, Tx, read_all};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};

/// A process of the example. Dropping it kills it.
struct Process {
    child: Child,
    arguments: Vec<String>,
    /// What it prints when it is ready.
    first_line: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments.iter().copied().map(str::to_owned).collect())
    }

    /// Starts a process, and waits until it is ready.
    fn start_with(arguments: Vec<String>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_several_processes"))
            .args(&arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first_line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut first_line).unwrap();
        Self {
            child,
            arguments,
            first_line,
        }
    }

    /// Starts another process with the same arguments.
    fn start_again(&self) -> Self {
        Self::start_with(self.arguments.clone())
    }

    /// Returns the address at which it listens. It is a web process.
    fn address(&self) -> String {
        let address = self.first_line.trim().strip_prefix("listening at http://");
        address.unwrap().to_owned()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "it ended by itself: {status}");
    }

    /// Asks the process to stop, and asserts that it ends well.
    fn stop(&mut self) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(kill.unwrap().success());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Posts a request, and returns the answer. Fails if the process does not answer.
fn post(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n");
    let rest = "Connection: close\r\nContent-Length: 0\r\n\r\n";
    stream.write_all((head + rest).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

/// What the clients know.
struct Web {
    /// The address of the web process.
    address: watch::Receiver<String>,
    /// Whether they begin no other job.
    is_over: Arc<AtomicBool>,
    acknowledged: mpsc::UnboundedSender<String>,
}

/// Enqueues jobs one after the other, and reports each that was acknowledged. Repeats a request without an answer, with
/// the same name, at the next web process.
async fn enqueue(client: usize, mut web: Web) {
    for number in 0.. {
        if web.is_over.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("{client}-{number}");
        loop {
            let address = web.address.borrow_and_update().clone();
            let path = format!("/enqueue?name={name}");
            let answered = spawn_blocking(move || post(&address, &path));
            if let Ok(answer) = answered.await.unwrap() {
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                break;
            }
            web.address.changed().await.unwrap();
        }
        web.acknowledged.send(name).unwrap();
    }
}

/// The processes of the example, and clients that enqueue jobs all the time.
struct Deployment {
    /// The first one is the web process.
    processes: Vec<Process>,
    /// The address of the web process, for the clients.
    address: watch::Sender<String>,
    clients: Vec<JoinHandle<()>>,
    /// Whether the clients begin no other job.
    is_over: Arc<AtomicBool>,
    /// What the clients report.
    reports: mpsc::UnboundedReceiver<String>,
    acknowledged: BTreeSet<String>,
}

impl Deployment {
    fn start(url: &str) -> Self {
        const CLIENTS: usize = 8;
        let processes = vec![
            Process::start(&["web", "--db", url, "--listen", "127.0.0.1:0"]),
            Process::start(&["work", "--db", url]),
            Process::start(&["work", "--db", url]),
        ];
        let (sender, address) = watch::channel(processes[0].address());
        let (acknowledged, reports) = mpsc::unbounded_channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS)
            .map(|client| {
                let web = Web {
                    address: address.clone(),
                    is_over: is_over.clone(),
                    acknowledged: acknowledged.clone(),
                };
                tokio::spawn(enqueue(client, web))
            })
            .collect();
        Self {
            processes,
            address: sender,
            clients,
            is_over,
            reports,
            acknowledged: BTreeSet::new(),
        }
    }

    /// Waits until more jobs are acknowledged, and more jobs take effect.
    async fn progress(&mut self) {
        self.hear();
        let done = self.done();
        for _job in 0..100 {
            let name = self.reports.recv().await.unwrap();
            self.acknowledged.insert(name);
        }
        until(async || self.done() != done).await;
    }

    /// Takes what was reported.
    fn hear(&mut self) {
        while let Ok(name) = self.reports.try_recv() {
            self.acknowledged.insert(name);
        }
    }

    /// Returns how many jobs took effect.
    fn done(&self) -> usize {
        let answer = get(&self.processes[0].address(), "/done");
        let body = answer.split("\r\n\r\n").nth(1);
        body.unwrap().trim().parse().unwrap()
    }

    /// Puts a process at a place, whose former process has ended.
    fn put(&mut self, place: usize, process: Process) {
        self.processes[place] = process;
        if place == 0 {
            self.address.send_replace(self.processes[0].address());
        }
    }

    /// Kills the process at a place, and starts another one.
    async fn kill(&mut self, place: usize) {
        self.progress().await;
        self.processes[place].kill();
        let next = self.processes[place].start_again();
        self.put(place, next);
    }

    /// Starts another process for the one at a place, which then is asked to stop.
    async fn deploy(&mut self, place: usize) {
        self.progress().await;
        let next = self.processes[place].start_again();
        self.processes[place].stop();
        self.put(place, next);
    }

    /// Returns the place of the process that owns the store.
    async fn owner(&self, store: &Store) -> usize {
        let Store::Embedded(store) = store else {
            panic!("the store is in a file");
        };
        let owner = loop {
            match store.processes().await {
                Ok(processes) => break processes[0].pid,
                // The owner has ended.
                Err(error) => assert_eq!(error.code(), Some(Code::TRANSACTION_TOO_OLD)),
            }
        };
        let mut processes = self.processes.iter();
        let place = processes.position(|process| process.child.id() == owner);
        place.unwrap()
    }

    /// Ends the clients, and returns the names of the jobs that were acknowledged.
    async fn end_clients(&mut self) -> BTreeSet<String> {
        self.is_over.store(true, Ordering::Relaxed);
        for client in join_all(self.clients.drain(..)).await {
            client.unwrap();
        }
        self.hear();
        take(&mut self.acknowledged)
    }
}

/// Waits until there is no job that did not take effect.
async fn wait_idle(store: &Store) {
    let runner = Runner::new(store.clone());
    let jobs = Queue::<String>::open(&runner, "jobs").await.unwrap();
    jobs.wait_idle(&runner).await.unwrap();
}

/// Returns how often each job took effect.
async fn effects(store: Store) -> BTreeMap<String, u64> {
    let done = &Subspace::from(("done", "name"));
    let (begin, end) = done.range();
    let query = &RangeQuery::keys(begin, end);
    let read = async |tr: Tx<_>| read_all(&tr, query.clone(), Isolation::Snapshot).await;
    let rows = Runner::new(store).run(read).await.unwrap();
    rows.into_iter()
        .map(|row| {
            let count = row.value()[..].try_into().unwrap();
            (done.unpack(row.key()).unwrap(), u64::from_le_bytes(count))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_job_takes_effect_exactly_once() {
    let folder = TempDir::new().unwrap();
    let url = format!("embedded:{}", folder.path().join("store").display());
    let acknowledged = timeout(HANG, kill_and_deploy(&url)).await;

    // The process that ended last has closed the store.
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let effects = effects(keyspace::open_existing(&url).unwrap()).await;
    assert_eq!(misaccounted(&acknowledged, &effects), [""; 0]);
    assert_eq!(effects.len(), acknowledged.len());
}

/// Kills each process and the owner, then stops each and the owner, while jobs are enqueued. Returns the names of the
/// jobs that were acknowledged, after all processes have ended.
async fn kill_and_deploy(url: &str) -> BTreeSet<String> {
    let mut deployment = Deployment::start(url);
    let observer = join(url);
    assert_eq!(deployment.owner(&observer).await, 0);
    for place in 0..3 {
        deployment.kill(place).await;
    }
    let owner = deployment.owner(&observer).await;
    deployment.kill(owner).await;
    for place in 0..3 {
        deployment.deploy(place).await;
    }
    let owner = deployment.owner(&observer).await;
    deployment.deploy(owner).await;
    let acknowledged = deployment.end_clients().await;
    wait_idle(&observer).await;
    observer.close().unwrap();
    for process in &mut deployment.processes {
        process.stop();
    }
    acknowledged
}
