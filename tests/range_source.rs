//! Files whose bytes come later: what is fetched of them, and what can go wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod gguf_file;

use gguf_file::{File, Value, sample, tensor};
use marquetry::io::{Gguf, Later, LoadConfig, RangeSource, SafeTensors};
use marquetry::nn::{Linear, Weights};
use marquetry::{DType, Device, Error, QuantizedTensor, Tensor};
use pollster::block_on;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

/// A file in memory that notes what is fetched of it.
#[derive(Clone, Default)]
struct Remote {
    bytes: Arc<Vec<u8>>,
    fetched: Arc<Mutex<Vec<Range<u64>>>>,
    /// What becomes of bytes from this place on.
    fault: Option<(u64, Fault)>,
}

#[derive(Clone, Copy)]
enum Fault {
    /// They cannot be fetched.
    Refused,
    /// One is missing.
    Short,
}

impl Remote {
    fn new(bytes: Vec<u8>) -> Remote {
        Remote { bytes: Arc::new(bytes), ..Remote::default() }
    }

    /// What has been fetched since the last call.
    fn fetched(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.fetched.lock().unwrap())
    }
}

impl RangeSource for Remote {
    fn name(&self) -> String {
        "remote".into()
    }

    fn length(&self) -> Later<'_, u64> {
        Box::pin(async { Ok(self.bytes.len() as u64) })
    }

    fn read(&self, range: Range<u64>) -> Later<'_, Vec<u8>> {
        Box::pin(async move {
            self.fetched.lock().unwrap().push(range.clone());
            let mut bytes = self.bytes[range.start as usize..range.end as usize].to_vec();
            match self.fault {
                Some((place, Fault::Refused)) if place < range.end => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the line is dead"));
                }
                Some((place, Fault::Short)) if place < range.end => _ = bytes.pop(),
                _ => {}
            }
            Ok(bytes)
        })
    }
}

/// A safetensors file with these tensors, whose header is longer than the first fetch if there is a `note`.
fn safetensors(tensors: &[(&str, &Tensor)], note: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let metadata = [("note".to_string(), "n".repeat(note))].into();
    SafeTensors::save_with_metadata(&path, tensors.iter().map(|(name, tensor)| (name, *tensor)), metadata).unwrap();
    std::fs::read(path).unwrap()
}

const LONG: usize = 300 << 10;

#[test]
fn only_what_is_loaded_is_fetched() {
    for name in DEVICES {
        let device = open(name);
        let long = Tensor::arange(0i32, LONG as i32, &device).unwrap();
        let short = Tensor::new([0.5f32, -2.0], &device).unwrap();
        let bytes = safetensors(&[("long", &long), ("short", &short)], 0);
        let (start, end) = (bytes.len() as u64 - 4 * LONG as u64 - 8, bytes.len() as u64);
        let remote = Remote::new(bytes);
        let file = block_on(SafeTensors::open_async(remote.clone())).unwrap();
        assert_eq!(remote.fetched(), vec![0..256 << 10]);
        assert_eq!(file.names().collect::<Vec<_>>(), ["long", "short"]);

        let loaded = block_on(file.load_async("short", &device)).unwrap();
        assert_eq!(loaded.to_vec::<f32>().unwrap(), [0.5, -2.0]);
        let fetched = remote.fetched();
        let range = fetched.first().cloned().unwrap_or_default();
        assert!(fetched.len() == 1 && range.end - range.start == 8, "{fetched:?}");
        assert!(range.start >= start && range.end <= end, "{fetched:?}");

        // What has been uploaded is not kept.
        let again = file.load("short", &device);
        assert!(matches!(&again, Err(Error::WouldBlock { op: "load", twin: "load_async" })), "{again:?}");

        let mut seen = Vec::new();
        let config = LoadConfig::new().filter(|name| name == "long").progress(|at| seen.push((at.bytes, at.total)));
        let loaded = block_on(file.load_with_async(&device, config)).unwrap();
        assert_eq!(loaded["long"].to_vec::<i32>().unwrap(), (0..LONG as i32).collect::<Vec<_>>());
        assert_eq!(seen, [(4 * LONG as u64, 4 * LONG as u64)]);
        assert_eq!(remote.fetched().len(), 1);
        assert_eq!(block_on(file.load_all_async(&device)).unwrap().len(), 2);
        assert_eq!(remote.fetched().len(), 2);
    }
}

#[test]
fn long_headers_take_few_fetches() {
    let device = open("vulkan");
    let x = Tensor::new([1f32, 2.0], &device).unwrap();
    let remote = Remote::new(safetensors(&[("x", &x)], 5 << 20));
    let file = block_on(SafeTensors::open_async(remote.clone())).unwrap();
    assert_eq!(file.metadata()["note"].len(), 5 << 20);
    let fetched = remote.fetched();
    // Each byte once, from the start.
    assert!(fetched.len() <= 3 && fetched.windows(2).all(|two| two[0].end == two[1].start), "{fetched:?}");
}

#[test]
fn shards_are_fetched_each_from_its_place() {
    let device = open("vulkan");
    let [x, y] = [1f32, 2.0].map(|number| Tensor::new([number], &device).unwrap());
    let shards = [("x", &x), ("y", &y)].map(|tensor| Remote::new(safetensors(&[tensor], 0)));
    let file = block_on(SafeTensors::open_shards_async(shards)).unwrap();
    let loaded = block_on(file.load_all_async(&device)).unwrap();
    assert_eq!(loaded["x"].to_vec::<f32>().unwrap(), [1.0]);
    assert_eq!(loaded["y"].to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn what_cannot_be_fetched_is_an_error_of_the_file() {
    let device = open("vulkan");
    let x = Tensor::arange(0i32, LONG as i32, &device).unwrap();
    let bytes = safetensors(&[("x", &x)], 0);
    for place in [0, bytes.len() as u64 - 1] {
        let with = |fault| Remote { fault: Some((place, fault)), ..Remote::new(bytes.clone()) };
        let load = |remote| {
            block_on(async {
                let file = SafeTensors::open_async(remote).await?;
                assert!(place > 0, "the header is damaged");
                file.load_async("x", &device).await
            })
        };
        let refused = load(with(Fault::Refused)).unwrap_err();
        assert!(matches!(&refused, Error::Io { kind: io::ErrorKind::ConnectionReset, .. }), "{refused}");
        assert_eq!(refused.to_string(), "remote: the line is dead");
        let short = load(with(Fault::Short)).unwrap_err();
        assert!(matches!(&short, Error::Format { .. }) && short.to_string().contains("bytes came"), "{short}");
    }
    // Files that are none.
    let none = block_on(SafeTensors::open_async(Remote::new(b"no file".to_vec()))).unwrap_err();
    assert!(none.to_string().contains("remote: not a safetensors file: it has 7 bytes"), "{none}");
    let none = block_on(Gguf::open_async(Remote::new(vec![0; 1 << 20]))).unwrap_err();
    assert!(none.to_string().contains("it does not begin with the bytes `GGUF`"), "{none}");
    let cut = block_on(SafeTensors::open_async(Remote::new(bytes[..bytes.len() - 1].to_vec()))).unwrap_err();
    assert!(cut.to_string().contains("the header tells of"), "{cut}");
}

#[test]
fn quantised_tensors_are_the_same_as_from_the_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference.gguf");
    for name in DEVICES {
        let (device, local) = (open(name), Gguf::open(&path).unwrap());
        let remote = Remote::new(std::fs::read(&path).unwrap());
        let file = block_on(Gguf::open_async(remote.clone())).unwrap();
        assert_eq!(file.metadata(), local.metadata());
        remote.fetched();
        let mut loaded = 0;
        for name in local.names() {
            let info = local.info(name).unwrap();
            if info.format.is_some() {
                let numbers = |tensor: QuantizedTensor| tensor.dequantize(DType::F32).unwrap().to_vec::<f32>().unwrap();
                let there = block_on(file.load_quantized_async(name, &device)).unwrap();
                assert_eq!(numbers(there), numbers(local.load_quantized(name, &device).unwrap()), "{name}");
            } else if info.dtype == Some(DType::F32) {
                let numbers = |tensor: Tensor| tensor.to_vec::<f32>().unwrap();
                let there = block_on(file.load_async(name, &device)).unwrap();
                assert_eq!(numbers(there), numbers(local.load(name, &device).unwrap()), "{name}");
            } else {
                continue;
            }
            loaded += 1;
            assert_eq!(remote.fetched().iter().map(|range| range.end - range.start).sum::<u64>(), info.bytes, "{name}");
        }
        assert!(loaded >= 3);
    }
}

/// A header with a long tokenizer is read several times, until all of it is there.
#[test]
fn long_headers_of_gguf_files_are_read_whole() {
    let words: Vec<Value> = (0..100_000).map(|number| Value::string(&format!("word {number}"))).collect();
    let long = sample().with("test.words", Value::array(8, &words));
    let remote = Remote::new(long.bytes());
    let file = block_on(Gguf::open_async(remote.clone())).unwrap();
    assert_eq!(file.get("test.words").unwrap().as_strings().unwrap().len(), words.len());
    assert!(remote.fetched().len() <= 4);
    assert_eq!(file.names().len(), sample().tensors.len());
}

/// A layer at a time is in the host's memory, also if several of its matrices become one.
#[test]
fn layers_are_fetched_one_by_one() {
    // Four blocks of Q4_0, each with the scale 1.
    let blocks = |first: u8| (0..4).flat_map(|block| [vec![0, 0x3c], vec![first + block; 16]].concat()).collect();
    let mut file = File::default();
    for layer in 0..2 {
        for part in 0..2 {
            let name = format!("{layer}.{}.weight", ["q", "k"][part]);
            file = file.tensor(tensor(&name, &[32, 4], 2, blocks(50 * layer + 100 * part as u8)));
        }
    }
    for name in DEVICES {
        let device = open(name);
        let remote = Remote::new(file.bytes());
        let weights = Weights::new(block_on(Gguf::open_async(remote.clone())).unwrap(), &device);
        remote.fetched();
        let x = Tensor::ones((1, 32), DType::F32, &device).unwrap();
        let whole = Weights::new(Gguf::from_bytes(file.bytes()).unwrap(), &device);
        for layer in 0..2 {
            let load = |layer: &Weights| Linear::load_packed(layer, &["q", "k"]);
            let packed = block_on(weights.at(layer).load_async(load)).unwrap();
            assert_eq!(remote.fetched().len(), 2);
            let expected = Linear::load_packed(&whole.at(layer), &["q", "k"]).unwrap();
            let sums = |layer: Linear| layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(sums(packed), sums(expected));
        }
        assert!(matches!(weights.at(0).at("q").matrix("weight"), Err(Error::WouldBlock { .. })));
    }
}
