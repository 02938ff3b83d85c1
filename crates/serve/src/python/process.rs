//! Child processes in groups of their own, which never outlive the server.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    time::Duration,
};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};

use super::output::{Origin, Tail, forward};

/// Time for the last output of a dead process to arrive.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// A running process and its group, both killed when this is dropped.
pub(super) struct Process {
    child: Child,
    group: Option<libc::pid_t>,
    output: JoinSet<()>,
    tail: Tail,
}

impl Process {
    /// Starts `command` with at most `memory_limit` bytes of address space.
    pub(super) async fn spawn(mut command: Command, origin: Origin, memory_limit: Option<u64>) -> io::Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
        confine(&mut command, memory_limit);
        let mut child = spawn_on_lasting_thread(command).await?;
        let group = child.id().and_then(|id| libc::pid_t::try_from(id).ok());
        let tail = Tail::default();
        let mut output = JoinSet::new();
        if let Some(stdout) = child.stdout.take() {
            let kept = matches!(origin, Origin::Tool(_)).then(|| tail.clone());
            output.spawn(forward(stdout, origin.clone(), "stdout", kept));
        }
        if let Some(stderr) = child.stderr.take() {
            output.spawn(forward(stderr, origin, "stderr", Some(tail.clone())));
        }
        Ok(Self { child, group, output, tail })
    }

    /// Waits for the process to end; cancelling this changes nothing.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits up to `grace`, kills what is left of the group and gathers the last output.
    pub(super) async fn end(mut self, grace: Duration) -> String {
        let own = timeout(grace, self.child.wait()).await;
        self.kill_group();
        let status = match own {
            Ok(status) => status,
            Err(_) => self.child.wait().await,
        };
        let _ = timeout(OUTPUT_GRACE, async { while self.output.join_next().await.is_some() {} }).await;
        match status {
            Ok(status) => describe(status),
            Err(error) => error.to_string(),
        }
    }

    /// The last lines of output, shared so that they can be read after [`Self::end`].
    pub(super) fn tail(&self) -> Tail {
        self.tail.clone()
    }

    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            // SAFETY: `kill` takes two integers; the group was made for this child and is signalled once.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Runs a tool to its end within `limit`: how it ended, or `None` after `limit`, and its last lines.
pub(super) async fn run(
    command: Command,
    name: &'static str,
    limit: Duration,
) -> io::Result<(Option<ExitStatus>, Vec<String>)> {
    let mut process = Process::spawn(command, Origin::Tool(name), None).await?;
    let tail = process.tail();
    let status = timeout(limit, process.wait()).await.ok().transpose()?;
    process.end(Duration::ZERO).await;
    Ok((status, tail.lines()))
}

/// An exit code or a signal, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("exit code {}", status.code().unwrap_or_default());
    };
    let name = match signal {
        libc::SIGKILL => " (SIGKILL, sent by someone or by the kernel when memory is short)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    };
    format!("signal {signal}{name}")
}

/// In the child, before the program starts: the memory limit, and on Linux death together with the server.
fn confine(command: &mut Command, memory_limit: Option<u64>) {
    #[cfg(target_os = "linux")]
    let parent = std::process::id();
    let limit = memory_limit.map(|bytes| libc::rlimit { rlim_cur: bytes as _, rlim_max: bytes as _ });
    let prepare = move || {
        #[cfg(target_os = "linux")]
        // SAFETY: plain system calls with integers.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The server may have died between fork and prctl.
            if libc::getppid().unsigned_abs() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if let Some(limit) = &limit {
            // SAFETY: `limit` is a valid structure, copied by the call.
            if unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes async-signal-safe system calls only and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

type Order = (Command, Handle, oneshot::Sender<io::Result<Child>>);

/// The death signal of a child follows the *thread* that made it, and a runtime may retire its threads: one thread that
/// lasts as long as the server makes all children.
async fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let (reply, child) = oneshot::channel();
    if ORDERS.get().is_none() {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::Builder::new().name("handler-spawner".into()).spawn(move || {
            for (mut command, runtime, reply) in orders {
                let _inside = runtime.enter();
                let _ = reply.send(command.spawn());
            }
        })?;
        // A second thread made at the same time ends as its sender is dropped here.
        let _ = ORDERS.set(sender);
    }
    let sent = ORDERS.get().is_some_and(|orders| orders.send((command, Handle::current(), reply)).is_ok());
    match child.await {
        Ok(child) if sent => child,
        _ => Err(io::Error::other("the thread that starts workers has ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_tool_that_lasts_too_long_is_killed_with_its_children() {
        let (status, lines) = run(shell("sleep 60 & echo $!; wait"), "sh", Duration::from_millis(200)).await.unwrap();
        assert!(status.is_none());
        let child: i32 = lines[0].parse().unwrap();
        for _ in 0..100 {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {child} is still there");
    }

    #[tokio::test]
    async fn the_last_lines_and_the_exit_code_are_kept() {
        let script = "for i in $(seq 30); do echo line $i; done; echo oops >&2; exit 3";
        let (status, lines) = run(shell(script), "sh", Duration::from_secs(10)).await.unwrap();
        assert_eq!(status.map(describe).as_deref(), Some("exit code 3"));
        assert_eq!(lines.len(), 12);
        assert!(lines.contains(&"oops".to_owned()) && lines.contains(&"line 30".to_owned()), "{lines:?}");
    }

    #[tokio::test]
    async fn the_memory_limit_holds_in_the_child() {
        let process = Process::spawn(shell("ulimit -v >&2"), Origin::Tool("sh"), Some(1 << 30)).await.unwrap();
        let tail = process.tail();
        assert_eq!(process.end(Duration::from_secs(5)).await, "exit code 0");
        assert_eq!(tail.lines(), ["1048576"]);
    }
}
