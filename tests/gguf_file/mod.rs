//! Writes GGUF files, sound and damaged ones.

#![allow(dead_code, reason = "each test uses a part")]

/// A value of metadata: the number of its type, and its bytes.
#[derive(Clone, Debug)]
pub struct Value(pub u32, pub Vec<u8>);

impl Value {
    pub fn u32(value: u32) -> Value {
        Value(4, value.to_le_bytes().into())
    }

    pub fn u16(value: u16) -> Value {
        Value(2, value.to_le_bytes().into())
    }

    pub fn string(text: &str) -> Value {
        Value(8, string(text))
    }

    /// An array of values of one type.
    pub fn array(kind: u32, values: &[Value]) -> Value {
        let head = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        Value(9, values.iter().fold(head, |bytes, value| [bytes, value.1.clone()].concat()))
    }
}

/// A tensor: its name, axes from the innermost one on, the number of its type, its place and its elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub axes: Vec<u64>,
    pub kind: u32,
    /// `None` is behind the tensor before it.
    pub offset: Option<u64>,
    pub elements: Vec<u8>,
}

pub fn tensor(name: &str, axes: &[u64], kind: u32, elements: Vec<u8>) -> Tensor {
    Tensor { name: name.into(), axes: axes.into(), kind, offset: None, elements }
}

/// What is written to a file. The counts are those of the lists, unless others are given.
#[derive(Clone, Debug)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
    pub counts: (Option<u64>, Option<u64>),
    pub alignment: usize,
}

impl Default for File {
    fn default() -> Self {
        let (metadata, tensors) = (Vec::new(), Vec::new());
        File { magic: *b"GGUF", version: 3, metadata, tensors, counts: (None, None), alignment: 32 }
    }
}

impl File {
    pub fn with(mut self, key: &str, value: Value) -> File {
        self.metadata.push((key.into(), value));
        self
    }

    pub fn tensor(mut self, tensor: Tensor) -> File {
        self.tensors.push(tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.counts.0.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.counts.1.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, Value(kind, value)) in &self.metadata {
            bytes.extend(string(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        let mut elements: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            elements.resize(elements.len().next_multiple_of(self.alignment), 0);
            bytes.extend((tensor.name.len() as u64).to_le_bytes());
            bytes.extend(&tensor.name);
            bytes.extend((tensor.axes.len() as u32).to_le_bytes());
            tensor.axes.iter().for_each(|length| bytes.extend(length.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(elements.len() as u64).to_le_bytes());
            elements.extend(&tensor.elements);
        }
        if !elements.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        }
        bytes.extend(elements);
        bytes
    }
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A sound file with something of everything.
pub fn sample() -> File {
    let numbers = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes).concat();
    let words = Value::array(8, &[Value::string("one"), Value::string(""), Value::string("drei")]);
    let nested = Value::array(9, &[Value::array(4, &[Value::u32(7)]), words.clone()]);
    File::default()
        .with("general.architecture", Value::string("llama"))
        .with("llama.block_count", Value::u32(30))
        .with("words", words)
        .with("nested", nested)
        .with("flag", Value(7, vec![1]))
        .with("wide", Value(12, 0.5f64.to_le_bytes().into()))
        .tensor(tensor("dense", &[3, 2], 0, numbers))
        .tensor(tensor("blocks", &[64, 2], 8, vec![1; 4 * 34]))
        .tensor(tensor("scalar", &[], 0, 2f32.to_le_bytes().into()))
        .tensor(tensor("empty", &[32, 0], 2, Vec::new()))
}
