//! Devices of a process that forks.
//!
//! A child process has a copy of the memory and of one thread. The driver's threads are missing, and what the driver
//! shares with the device belongs to the parent. If a child used a device of its parent, the call would hang or disturb
//! the parent. So to a child, these devices are lost. It may open them again if the driver can be started again.

use super::contract::{Backend, BufferId, Compiled, CopyQueue, MemoryUse, ProgramId, ReadCallback, Step, Ticket};
use super::info::DeviceInfo;
use crate::base::error::{Error, Result};
use crate::shader::{Module, Target};
use std::ops::Range;
use std::sync::Arc;

/// Returns the id of this process, or 0 in a browser.
pub(crate) fn process() -> u32 {
    if cfg!(native) { std::process::id() } else { 0 }
}

/// A backend that serves only the process that opened it. It checks calls per batch, buffer and kernel, but none per
/// command. So asking for the process id (about 0.1 us) does not show.
pub(crate) struct OfProcess {
    backend: Arc<dyn Backend>,
    process: u32,
}

impl OfProcess {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        OfProcess { backend: backend.into(), process: process() }
    }

    fn is_inherited(&self) -> bool {
        self.process != process()
    }

    /// Returns the backend, or an error in another process.
    fn own(&self) -> Result<&dyn Backend> {
        if self.is_inherited() {
            let reason = "this process was forked from the one that opened it, and devices do not survive that".into();
            return Err(Error::DeviceLost { device: self.info().to_string(), reason });
        }
        Ok(&*self.backend)
    }
}

impl Drop for OfProcess {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Only the parent may close it, so it is never dropped here.
            std::mem::forget(self.backend.clone());
        }
    }
}

impl Backend for OfProcess {
    fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    fn target(&self) -> Target {
        self.backend.target()
    }

    fn target_of_apps(&self) -> Target {
        self.backend.target_of_apps()
    }

    fn budget(&self) -> u64 {
        self.own().map_or(self.info().memory, Backend::budget)
    }

    fn reserved(&self) -> Option<u64> {
        self.own().ok()?.reserved()
    }

    fn foresee(&self, bytes: u64) {
        if let Ok(backend) = self.own() {
            backend.foresee(bytes);
        }
    }

    fn allocate(&self, bytes: u64, memory: MemoryUse) -> Result<BufferId> {
        self.own()?.allocate(bytes, memory)
    }

    fn free(&self, buffer: BufferId) {
        if let Ok(backend) = self.own() {
            backend.free(buffer);
        }
    }

    fn write(&self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<()> {
        self.own()?.write(buffer, offset, bytes)
    }

    fn host_reads_device_memory(&self) -> bool {
        self.backend.host_reads_device_memory()
    }

    fn host_writes_device_memory(&self) -> bool {
        self.backend.host_writes_device_memory()
    }

    fn rewrites_uploads(&self) -> bool {
        self.backend.rewrites_uploads()
    }

    fn binary_key(&self, module: &Module) -> Option<String> {
        self.backend.binary_key(module)
    }

    fn compile(&self, module: &Module, binary: Option<&[u8]>) -> Result<Compiled> {
        self.own()?.compile(module, binary)
    }

    fn submit_after(&self, steps: &[Step], timed: bool, copies: Ticket) -> Result<Ticket> {
        self.own()?.submit_after(steps, timed, copies)
    }

    fn copies(&self) -> Option<&dyn CopyQueue> {
        self.own().ok()?.copies()
    }

    fn prepare(&self, steps: &[Step]) -> Result<Option<ProgramId>> {
        self.own()?.prepare(steps)
    }

    fn discard(&self, program: ProgramId) {
        if let Ok(backend) = self.own() {
            backend.discard(program);
        }
    }

    fn timings(&self, ticket: Ticket) -> Result<Vec<Range<u64>>> {
        self.own()?.timings(ticket)
    }

    fn completed(&self) -> Result<Ticket> {
        self.own()?.completed()
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.own()?.wait(ticket)
    }

    #[cfg(not(native))]
    fn notify(&self, ticket: Ticket, done: Box<dyn FnOnce() + Send>) {
        match self.own() {
            Ok(backend) => backend.notify(ticket, done),
            Err(_) => done(),
        }
    }

    fn read(&self, buffer: BufferId, bytes: u64, after: Ticket, done: ReadCallback) {
        match self.own() {
            Ok(backend) => backend.read(buffer, bytes, after, done),
            Err(error) => done(Err(error)),
        }
    }

    fn read_now(&self, buffer: BufferId, offset: u64, after: Ticket, into: &mut [u8]) -> Result<()> {
        self.own()?.read_now(buffer, offset, after, into)
    }
}

#[cfg(test)]
#[cfg(device_tests)]
#[cfg(unix)]
mod tests {
    use crate::backend::contract_tests::run_again;
    use crate::backend::registry;
    use crate::{BackendKind, Device, Error, Result, Tensor};

    /// The variable that names the device, set in the process that forks.
    const FORKS: &str = "MARQUETRY_TEST_FORK";

    /// After how many seconds a child that hangs is ended.
    const PATIENCE: u32 = 30;

    /// Runs itself in another process, because a fork copies only one of the many threads that run tests.
    #[test]
    fn a_device_does_not_survive_a_fork() {
        if let Ok(name) = std::env::var(FORKS) {
            return fork_and_check(&name);
        }
        for name in registry::compiled_in().map(BackendKind::name) {
            run_again(concat!(module_path!(), "::a_device_does_not_survive_a_fork"), &[(FORKS, name)]);
        }
    }

    fn fork_and_check(name: &str) {
        let device: Device = name.parse().unwrap();
        let x = Tensor::new([1f32, 2.0], &device).unwrap();
        assert_eq!((&x * 3.0).unwrap().to_vec::<f32>().unwrap(), [3.0, 6.0]);
        // Recorded but not submitted: only the parent submits it.
        let y = (&x * 4.0).unwrap();
        y.realize().unwrap();
        // SAFETY: the child calls `in_child`, and ends without running anything else of this process.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: it takes a number.
            unsafe { libc::alarm(PATIENCE) };
            let outcome = in_child(name, device, [x, y]);
            if let Err(wrong) = &outcome {
                eprintln!("in the child: {wrong}");
            }
            // SAFETY: the process ends here.
            unsafe { libc::_exit(outcome.is_err().into()) };
        }
        let mut status = -1;
        // SAFETY: the pointer is valid for the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's status; {} is a hang", libc::SIGALRM);
        // The parent does not notice.
        assert_eq!(y.to_vec::<f32>().unwrap(), [4.0, 8.0]);
        assert_eq!((&x * 5.0).unwrap().to_vec::<f32>().unwrap(), [5.0, 10.0]);
    }

    /// Fails with what is wrong in the child of a fork.
    fn in_child(name: &str, device: Device, [x, y]: [Tensor; 2]) -> Result<(), String> {
        fn is_lost<T>(call: &str, result: Result<T>) -> Result<(), String> {
            match result {
                Err(Error::DeviceLost { reason, .. }) if reason.contains("forked") => Ok(()),
                Err(other) => Err(format!("{call}: {other}")),
                Ok(_) => Err(format!("{call}: nothing wrong")),
            }
        }
        is_lost("read", x.to_vec::<f32>())?;
        is_lost("read of what was recorded", y.to_vec::<f32>())?;
        is_lost("upload", Tensor::new(vec![0f32; 10_000], &device))?;
        is_lost("compile", x.sin().and_then(|x| x.realize()))?;
        is_lost("synchronize", device.synchronize())?;
        is_lost("trim", device.trim())?;
        device.memory_stats();
        let anew = name.parse::<Device>();
        if matches!(&anew, Ok(anew) if *anew == device) {
            return Err("the parent's device was handed out".into());
        }
        // NVIDIA's driver opens nothing in the child of a process that has used it.
        let opens_none = device.info().vendor == "NVIDIA";
        drop((device, x, y));
        let anew = match anew {
            Err(Error::BackendUnavailable { .. } | Error::Driver { .. }) if opens_none => return Ok(()),
            Err(Error::BackendUnavailable { reason, .. }) if name == "level-zero" && reason.contains("forked") => {
                return Ok(());
            }
            anew => anew.map_err(|error| format!("opened anew: {error}"))?,
        };
        let z = Tensor::new([1f32, 2.0], &anew).and_then(|z| (z * 7.0)?.to_vec::<f32>());
        match z {
            Ok(z) if z == [7.0, 14.0] => Ok(()),
            other => Err(format!("on the device that was opened anew: {other:?}")),
        }
    }
}
