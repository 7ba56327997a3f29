//! [`Waiter`]: the thread that waits for the batches of asynchronous reads.

use crate::backend::contract::{Backend, Ticket};
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use futures_channel::oneshot;
use std::sync::{Arc, mpsc};

/// Waits in a thread of its own, which starts when it is first asked, and ends with the device.
#[derive(Default)]
pub(super) struct Waiter {
    requests: Mutex<Option<mpsc::Sender<Request>>>,
}

struct Request {
    backend: Arc<dyn Backend>,
    ticket: Ticket,
    done: oneshot::Sender<Result<()>>,
}

impl Waiter {
    /// Returns the receiver of the answer that comes when a batch has run.
    pub fn wait(&self, backend: &Arc<dyn Backend>, ticket: Ticket) -> Result<oneshot::Receiver<Result<()>>> {
        let (done, answer) = oneshot::channel();
        let request = Request { backend: backend.clone(), ticket, done };
        let mut requests = self.requests.lock();
        let sender = match &*requests {
            Some(sender) => sender,
            None => requests.insert(start(backend)?),
        };
        // The thread lives as long as the sender does.
        _ = sender.send(request);
        Ok(answer)
    }
}

/// Starts the thread.
fn start(backend: &Arc<dyn Backend>) -> Result<mpsc::Sender<Request>> {
    let (sender, requests) = mpsc::channel();
    let work = move || {
        for Request { backend, ticket, done } in requests {
            let result = backend.wait(ticket);
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
