//! [`Waiter`]: waits for the device, for calls that do not block.

use crate::backend::contract::{Backend, Ticket};
#[cfg(native)]
use crate::base::error::Error;
use crate::base::error::Result;
#[cfg(native)]
use crate::base::lock::Mutex;
use futures_channel::oneshot;
use std::sync::Arc;
#[cfg(native)]
use std::sync::mpsc;

/// Waits in a thread of its own, which starts when it is first asked, and ends with the device. A browser has no
/// threads; its event loop waits.
#[derive(Default)]
pub(super) struct Waiter {
    #[cfg(native)]
    requests: Mutex<Option<mpsc::Sender<Request>>>,
}

#[cfg(native)]
struct Request {
    backend: Arc<dyn Backend>,
    ticket: Ticket,
    copies: Ticket,
    done: oneshot::Sender<Result<()>>,
}

impl Waiter {
    /// Returns the receiver of the answer that comes when a batch has run, and a submission to the queue that only
    /// copies (`Ticket(0)`: none).
    #[cfg(native)]
    pub fn wait(
        &self,
        backend: &Arc<dyn Backend>,
        ticket: Ticket,
        copies: Ticket,
    ) -> Result<oneshot::Receiver<Result<()>>> {
        let (done, answer) = oneshot::channel();
        let request = Request { backend: backend.clone(), ticket, copies, done };
        let mut requests = self.requests.lock();
        let sender = match &*requests {
            Some(sender) => sender,
            None => requests.insert(start(backend)?),
        };
        // The thread lives as long as the sender does.
        _ = sender.send(request);
        Ok(answer)
    }

    /// The same in a browser, where no queue only copies.
    #[cfg(not(native))]
    pub fn wait(&self, backend: &Arc<dyn Backend>, ticket: Ticket, _: Ticket) -> Result<oneshot::Receiver<Result<()>>> {
        let (done, answer) = oneshot::channel();
        // Whoever asked may be gone.
        backend.notify(ticket, Box::new(|| _ = done.send(Ok(()))));
        Ok(answer)
    }
}

/// Starts the thread.
#[cfg(native)]
fn start(backend: &Arc<dyn Backend>) -> Result<mpsc::Sender<Request>> {
    let (sender, requests) = mpsc::channel();
    let work = move || {
        for Request { backend, ticket, copies, done } in requests {
            let copied = || backend.copies().filter(|_| copies > Ticket(0)).map_or(Ok(()), |queue| queue.wait(copies));
            let result = backend.wait(ticket).and_then(|()| copied());
            // Whoever gets the answer may close the device. This thread must not be the last to hold it.
            drop(backend);
            _ = done.send(result);
        }
    };
    std::thread::Builder::new().name("marquetry reads".into()).spawn(work).map_err(|error| {
        let message = format!("no thread to wait in: {error}");
        Error::Driver { backend: backend.info().backend, call: "read", message }
    })?;
    Ok(sender)
}
