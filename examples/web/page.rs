//! What both pages share: how they begin, how they show errors, and files that they fetch in ranges.

use js_sys::{Promise, Uint8Array};
use marquetry::Device;
use marquetry::io::{Later, RangeSource};
use std::io;
use std::ops::Range;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// Opens the device, and returns its description. A page calls this first.
#[wasm_bindgen]
pub async fn open() -> Result<String, JsError> {
    console_error_panic_hook::set_once();
    // A page that starts again has a logger.
    _ = console_log::init_with_level(log::Level::Warn);
    Ok(Device::best_async().await?.to_string())
}

/// Returns an error as pages show it.
pub fn shown(error: anyhow::Error) -> JsError {
    JsError::new(&format!("{error:#}"))
}

#[wasm_bindgen]
extern "C" {
    /// The class of this name in `files.js`.
    pub type RemoteFile;

    #[wasm_bindgen(method, getter)]
    fn name(this: &RemoteFile) -> String;

    /// A promise of the length in bytes.
    #[wasm_bindgen(method)]
    fn length(this: &RemoteFile) -> Promise;

    /// A promise of the bytes from `start` to `end`, as a `Uint8Array`.
    #[wasm_bindgen(method)]
    fn read(this: &RemoteFile, start: f64, end: f64) -> Promise;
}

impl RangeSource for RemoteFile {
    fn name(&self) -> String {
        RemoteFile::name(self)
    }

    fn length(&self) -> Later<'_, u64> {
        Box::pin(async {
            let length = JsFuture::from(RemoteFile::length(self)).await.map_err(failed)?;
            length.as_f64().map(|length| length as u64).ok_or_else(|| io::Error::other("its length is no number"))
        })
    }

    fn read(&self, range: Range<u64>) -> Later<'_, Vec<u8>> {
        Box::pin(async move {
            let bytes = JsFuture::from(RemoteFile::read(self, range.start as f64, range.end as f64)).await;
            Ok(Uint8Array::new(&bytes.map_err(failed)?).to_vec())
        })
    }
}

/// Returns the error for what a promise was refused with.
fn failed(error: JsValue) -> io::Error {
    let message = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
    io::Error::other(message.unwrap_or_else(|| format!("{error:?}")))
}
