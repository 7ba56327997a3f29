//! A chat in a browser: what the page `index.html` calls. The model and the conversation are those of the example
//! `chat`.

#![cfg(target_family = "wasm")]

#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../chat/architecture.rs"]
mod architecture;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../chat/chat.rs"]
mod chat;
#[path = "../../../chat/decoder.rs"]
mod decoder;
#[path = "../../../chat/model.rs"]
mod model;
#[path = "../../page.rs"]
mod page;
#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../../../chat/tokens.rs"]
mod tokens;

use architecture::Config;
use decoder::Decoder;
use js_sys::Function;
use marquetry::io::Gguf;
use marquetry::nn::Sampling;
use marquetry::{DType, Device};
use model::Model;
use page::{RemoteFile, shown};
use std::sync::atomic::{AtomicBool, Ordering};
use tokens::Tokens;
use wasm_bindgen::prelude::*;

/// The most tokens of the conversation.
const CONTEXT: usize = 1024;

/// Whether the reply that is being written should end.
static STOP: AtomicBool = AtomicBool::new(false);

/// A page's model and conversation.
#[wasm_bindgen]
pub struct Chat(chat::Chat);

/// Ends the reply that is being written.
#[wasm_bindgen]
pub fn stop() {
    STOP.store(true, Ordering::Relaxed);
}

#[wasm_bindgen]
impl Chat {
    /// Loads the model and compiles its kernels. The file reports its progress by itself; `compiling` is told how many
    /// kernels are done, and how many there are.
    pub async fn load(file: RemoteFile, compiling: &Function) -> Result<Chat, JsError> {
        let load = async || -> anyhow::Result<Chat> {
            let device = Device::best_async().await?;
            let file = Gguf::open_async(file).await?;
            let capacity = CONTEXT.min(Config::read(&file)?.context);
            let tokens = Tokens::load(&file)?;
            let model = Model::load(file, capacity, DType::F32, &device).await?;
            let cache = model.cache(1, capacity, None)?;
            let mut decoder = Decoder::new(model, cache, 1, capacity, true)?;
            decoder.warm_up(|done, all| _ = compiling.call2(&JsValue::NULL, &done.into(), &all.into())).await?;
            device.synchronize_async().await?;
            Ok(Chat(chat::Chat::new(decoder, tokens)))
        };
        load().await.map_err(shown)
    }

    /// Replies to a message, with at most so many tokens. `write` gets the pieces of the text. Returns the times, as
    /// JSON.
    pub async fn reply(
        &mut self,
        message: &str,
        temperature: f32,
        max_tokens: usize,
        write: &Function,
    ) -> Result<String, JsError> {
        STOP.store(false, Ordering::Relaxed);
        let sampling = Sampling::default().temperature(temperature).top_p(0.95).seed(self.0.replies());
        let write = |piece: &str| {
            let written = write.call1(&JsValue::NULL, &piece.into());
            written.map(drop).map_err(|error| anyhow::anyhow!("the page cannot show the reply: {error:?}"))
        };
        let reply = self.0.reply(message, &sampling, max_tokens, &STOP, write).await.map_err(shown)?;
        serde_json::to_string(&reply).map_err(|error| JsError::new(&error.to_string()))
    }
}
