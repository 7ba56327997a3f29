//! Search by meaning in a browser: what the page `index.html` calls. The model and the index are those of the example
//! `search`.

#![cfg(target_family = "wasm")]

#[path = "../../../search/index.rs"]
mod index;
#[path = "../../../search/model.rs"]
mod model;
#[path = "../../page.rs"]
mod page;
#[path = "../../../search/tokens.rs"]
mod tokens;

use index::Index;
use js_sys::{Array, Function};
use marquetry::io::SafeTensors;
use marquetry::{DType, Device, Tensor};
use model::Model;
use page::{RemoteFile, shown};
use std::rc::Rc;
use tokens::Tokens;
use wasm_bindgen::prelude::*;

/// How many lines are embedded at a time.
const BATCH: usize = 16;

/// A page's model, and the text that it has read.
#[wasm_bindgen]
pub struct Search {
    device: Device,
    model: Rc<Model>,
    tokens: Rc<Tokens>,
    index: Option<Index>,
}

/// Adds four numbers up on the device: the least that shows that it works.
#[wasm_bindgen]
pub async fn first_kernel() -> Result<f32, JsError> {
    let numbers = Tensor::new([1f32, 2.0, 3.0, 4.0], &Device::best_async().await?)?;
    Ok(numbers.sum_all()?.to_scalar_async().await?)
}

#[wasm_bindgen]
impl Search {
    /// Loads the model. The files report their progress by themselves.
    pub async fn load(weights: RemoteFile, tokenizer: &[u8]) -> Result<Search, JsError> {
        let load = async || -> anyhow::Result<Search> {
            let device = Device::best_async().await?;
            let tokens = Rc::new(Tokens::new(tokenizer)?);
            let model = Rc::new(Model::load(SafeTensors::open_async(weights).await?, &device).await?);
            device.synchronize_async().await?;
            Ok(Search { device, model, tokens, index: None })
        };
        load().await.map_err(shown)
    }

    /// Compiles the kernels. `progress` is told how many are done, and how many there are.
    pub async fn warm_up(&self, progress: &Function) -> Result<(), JsError> {
        let shape = (BATCH, 24);
        let ids = Tensor::zeros(shape, DType::U32, &self.device)?;
        let mask = Tensor::ones(shape, DType::F32, &self.device)?;
        let work = || {
            let embedded = self.model.embed_ids(&ids, &mask)?;
            Ok([embedded.matmul(&embedded.narrow(0, 0, 1)?.t()?)?])
        };
        self.device.warm_up_async(work, |done, all| tell(progress, done, all)).await?;
        Ok(())
    }

    /// Reads a text. `progress` is told how many lines are done, and how many there are. Returns their number.
    pub async fn read(&mut self, text: &str, progress: &Function) -> Result<usize, JsError> {
        let lines = index::lines(text);
        let all = lines.len();
        if all == 0 {
            return Err(JsError::new("the text is empty"));
        }
        let (model, tokens) = (self.model.clone(), self.tokens.clone());
        let built = Index::build(lines, BATCH, model, tokens, |done| tell(progress, done, all)).await;
        Ok(self.index.insert(built.map_err(shown)?).len())
    }

    /// Returns the lines that are closest to a query, best first: each an array of similarity, number and text.
    pub async fn search(&self, query: &str, top: usize) -> Result<Array, JsError> {
        let index = self.index.as_ref().ok_or_else(|| JsError::new("no text has been read"))?;
        let found = index.search(query, top).await.map_err(shown)?;
        let row = |(similarity, line): (f32, &index::Line)| {
            Array::of3(&similarity.into(), &(line.number as f64).into(), &line.text.as_str().into())
        };
        Ok(found.into_iter().map(row).collect())
    }

    /// Returns the embedding of a text.
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>, JsError> {
        let encoded = self.tokens.encode(&[text]).map_err(shown)?;
        Ok(self.model.embed(&encoded)?.to_vec_async().await?)
    }
}

fn tell(progress: &Function, done: usize, all: usize) {
    // A page whose progress fails shows that by itself.
    _ = progress.call2(&JsValue::NULL, &(done as f64).into(), &(all as f64).into());
}
