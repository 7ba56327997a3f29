//! The weights of a network in an ONNX file.
//!
//! Only the numbers are taken from the file: the layers are connected in Rust.

use anyhow::{Context, Result, ensure};
use marquetry::{Device, Tensor};
use rten_onnx::onnx::{DataType, ModelProto, TensorProto};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// An array of numbers.
#[derive(Clone)]
pub struct Array {
    pub shape: Vec<usize>,
    pub numbers: Vec<f32>,
}

/// The arrays of a file by name.
pub struct Weights {
    arrays: HashMap<String, Array>,
    /// The other data of the file.
    properties: HashMap<String, String>,
    device: Device,
}

impl Weights {
    /// Reads a file.
    pub fn load(path: &Path, device: &Device) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let model = ModelProto::parse_file(file).with_context(|| format!("{} is no ONNX file", path.display()))?;
        let properties = model.metadata_props.into_iter().filter_map(|entry| entry.key.zip(entry.value)).collect();
        let mut arrays = HashMap::new();
        // Each weight is the value of a node that has no input.
        for node in model.graph.into_iter().flat_map(|graph| graph.node) {
            let value = node.attribute.into_iter().find_map(|attribute| attribute.t);
            if let (Some(name), Some(array)) = (node.output.into_iter().next(), value.and_then(floats)) {
                arrays.insert(name, array);
            }
        }
        ensure!(!arrays.is_empty(), "{} has no weights", path.display());
        Ok(Weights { arrays, properties, device: device.clone() })
    }

    /// Returns an array on the host.
    pub fn array(&self, name: &str) -> Result<&Array> {
        self.arrays.get(name).with_context(|| format!("the network has no weights `{name}`"))
    }

    /// Returns the only number of an array.
    pub fn number(&self, name: &str) -> Result<f32> {
        let array = self.array(name)?;
        ensure!(array.numbers.len() == 1, "`{name}` has shape {:?}, not one number", array.shape);
        Ok(array.numbers[0])
    }

    /// Returns an array on the device.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.upload(self.array(name)?)
    }

    /// Brings an array to the device.
    pub fn upload(&self, array: &Array) -> Result<Tensor> {
        Ok(Tensor::from_slice(&array.numbers, array.shape.as_slice(), &self.device)?)
    }

    /// Returns other data of the file.
    pub fn property(&self, key: &str) -> Result<&str> {
        self.properties.get(key).map(String::as_str).with_context(|| format!("the network does not tell its `{key}`"))
    }
}

/// Returns the numbers of a constant, if they are 32-bit floats.
fn floats(tensor: TensorProto) -> Option<Array> {
    let shape: Option<Vec<usize>> = tensor.dims.iter().map(|&length| usize::try_from(length).ok()).collect();
    let shape = shape.filter(|_| tensor.data_type == Some(DataType::FLOAT))?;
    let numbers = match tensor.raw_data {
        Some(bytes) => bytemuck::pod_collect_to_vec(&bytes.borrow()),
        None => tensor.float_data,
    };
    (numbers.len() == shape.iter().product::<usize>()).then_some(Array { shape, numbers })
}
