//! GGUF files on every device, and each kind of damage.
//!
//! `scripts/gguf_reference.py` wrote `tests/data/reference.gguf` with the package `gguf` for Python.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod gguf_file;

use gguf_file::{File, Value, sample, tensor};
use marquetry::io::{Gguf, GgufArray, GgufValue};
use marquetry::{BlockFormat, DType, Device, Error};
use std::path::{Path, PathBuf};

const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference.gguf")
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Error>, parts: &[&str]) {
    match result {
        Err(error @ Error::Format { .. }) => {
            let message = error.to_string();
            parts.iter().for_each(|part| assert!(message.contains(part), "`{message}` does not tell `{part}`"));
        }
        Err(error) => panic!("expected Error::Format that tells {parts:?}, got {error}"),
        Ok(_) => panic!("expected Error::Format that tells {parts:?}"),
    }
}

#[track_caller]
fn refuses(file: &File, parts: &[&str]) {
    assert_refused(Gguf::from_bytes(file.bytes()), parts);
}

#[test]
fn a_file_of_the_reference_has_what_was_written() {
    let file = Gguf::open(reference()).unwrap();
    let get = |key| file.get(key).unwrap();
    assert_eq!(get("general.architecture").as_str().unwrap(), "llama");
    assert_eq!(get("test.string").as_str().unwrap(), "Grüße, 世界");
    assert_eq!(get("test.strings").as_strings().unwrap(), ["a", "", "\u{120}b"]);
    assert_eq!(get("test.i32s").as_integers().unwrap(), [1, -2, 3]);
    assert_eq!(get("test.f32s").as_floats().unwrap(), [0.25, -0.5]);
    assert_refused(get("test.i32s").as_floats(), &["is an array of i32, not an array of floats"]);
    assert_eq!(get("test.u64").as_u64().unwrap(), (1 << 63) + 1);
    assert_eq!(get("test.u32").as_u32().unwrap(), 4_000_000_000);
    assert_eq!(get("test.i64").as_i64().unwrap(), -(1 << 62));
    assert_eq!((get("test.f32").as_f32().unwrap(), get("test.f32").as_f64().unwrap()), (0.5, 0.5));
    assert_eq!((get("test.f64").as_f64().unwrap(), get("test.f64").as_f32().unwrap()), (0.1, 0.1));
    assert!(get("test.bool").as_bool().unwrap());
    for (key, value) in [
        ("test.u8", GgufValue::U8(200)),
        ("test.i8", GgufValue::I8(-100)),
        ("test.u16", GgufValue::U16(60_000)),
        ("test.i16", GgufValue::I16(-30_000)),
        ("test.i32", GgufValue::I32(-2_000_000_000)),
        ("test.f32s", GgufValue::Array(GgufArray::F32(vec![0.25, -0.5]))),
        ("test.bools", GgufValue::Array(GgufArray::Bool(vec![true, false]))),
    ] {
        assert_eq!(file.metadata()[key], value, "{key}");
    }

    assert_refused(file.get("test.none").map(|_| ()), &["reference.gguf", "there is no metadata `test.none`"]);
    assert_refused(get("test.u64").as_i64(), &["metadata `test.u64` is 9223372036854775809, which is not an i64"]);
    assert_refused(get("test.i8").as_u32(), &["`test.i8` is -100, which is not a u32"]);
    assert_refused(get("test.i8").as_str(), &["`test.i8` is an i8, not a string"]);
    assert_refused(get("test.u8").as_f32(), &["`test.u8` is a u8, not an f32"]);
    assert_refused(get("test.f32s").as_integers(), &["is an array of f32, not an array of integers"]);
    assert!(file.find("test.none").is_none());
}

#[test]
fn tensors_of_the_reference_are_loaded_on_every_device() {
    let file = Gguf::open(reference()).unwrap();
    let info = file.info("q4_0").unwrap();
    assert_eq!((info.type_name, info.shape.dims(), info.bytes), ("Q4_0", &[4, 256][..], 4 * 8 * 18));
    assert_eq!((info.dtype, info.format), (None, Some(BlockFormat::Q4_0)));
    for device in DEVICES.map(open) {
        let numbers = |name: &str| file.load(name, &device).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(file.load("f32", &device).unwrap().dims(), [2, 5]);
        let halves = file.load("f16", &device).unwrap();
        assert_eq!((halves.dims(), halves.dtype()), (&[2, 3, 4][..], DType::F16));
        assert_eq!(numbers("f16").to_vec::<f32>().unwrap(), (0..24).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(file.load("i8", &device).unwrap().to_vec::<i8>().unwrap(), [-3, -2, -1, 0, 1, 2, 3]);
        assert_eq!(file.load("i32", &device).unwrap().to_vec2::<i32>().unwrap(), [[1, -2], [3, i32::MAX]]);
        if device.info().features.i64 {
            assert_eq!(file.load("i64", &device).unwrap().to_vec::<i64>().unwrap(), [-(1 << 40)]);
        }
        if device.info().features.f64 {
            assert_eq!(file.load("f64", &device).unwrap().to_vec::<f64>().unwrap(), [0.1, 2.0]);
        }
        let expected = numbers("bf16.expected").to_vec::<f32>().unwrap();
        assert_eq!(numbers("bf16").to_vec::<f32>().unwrap(), expected);
        for name in ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0"] {
            let quantized = file.load_quantized(name, &device).unwrap();
            let found = quantized.dequantize(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(found, numbers(&format!("{name}.expected")).to_vec::<f32>().unwrap(), "{name} on {device}");
        }
    }
}

#[test]
fn each_format_is_loaded_and_other_types_say_what_to_do() {
    let device = open("vulkan");
    let numbers = [2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 34, 35, 39];
    for (format, number) in BlockFormat::ALL.into_iter().zip(numbers) {
        let bytes = vec![0; 256 / format.block_elements() * format.block_bytes()];
        let file = File::default().tensor(tensor("x", &[256, 1], number, bytes));
        let file = Gguf::from_bytes(file.bytes()).unwrap();
        assert_eq!(file.load_quantized("x", &device).unwrap().format(), format);
        let error = file.load("x", &device).unwrap_err();
        assert_eq!(error.op(), Some("load"));
        let expected = format!("`x` is quantised as {format}; load it with `load_quantized`");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    for (name, number, elements, bytes) in [("IQ1_S", 19, 256, 50), ("I16", 25, 1, 2), ("NVFP4", 40, 64, 36)] {
        let file = File::default().tensor(tensor("x", &[elements], number, vec![0; bytes]));
        let file = Gguf::from_bytes(file.bytes()).unwrap();
        assert_eq!(file.info("x").unwrap().type_name, name);
        assert_refused(file.load_quantized("x", &device), &[&format!("`x` holds {name}"), "quantise the model anew"]);
        assert_refused(file.load("x", &device), &[&format!("`x` holds {name}, which is none of f32, f16")]);
    }
    let file = Gguf::from_bytes(sample().bytes()).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["blocks", "dense", "empty", "scalar"]);
    assert_eq!(file.load("dense", &device).unwrap().to_vec2::<f32>().unwrap(), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    assert_eq!(file.load("scalar", &device).unwrap().to_scalar::<f32>().unwrap(), 2.0);
    assert_eq!(file.load_quantized("empty", &device).unwrap().dims(), [0, 32]);
    let error = file.load_quantized("dense", &device).unwrap_err();
    assert_eq!(error.op(), Some("load_quantized"));
    assert!(error.to_string().contains("`dense` holds F32, which is not quantised; load it with `load`"), "{error}");
    assert_refused(file.load("none", &device), &["there is no tensor `none` among the 4"]);
    let GgufValue::Array(GgufArray::Array(nested)) = &file.metadata()["nested"] else { panic!("not nested") };
    assert_eq!(nested[0], GgufArray::U32(vec![7]));
}

#[test]
fn a_wrong_beginning_is_refused() {
    assert_refused(Gguf::from_bytes(*b"GG"), &["<memory>", "the magic number takes 4 bytes, and 2 are left (byte 0)"]);
    refuses(&File { magic: *b"GGML", ..sample() }, &["does not begin with the bytes `GGUF` (byte 0)"]);
    refuses(&File { version: 1, ..sample() }, &["it has version 1, and versions 2 and 3 are read (byte 4)"]);
    refuses(&File { version: 3 << 24, ..sample() }, &["big-endian", "gguf-convert-endian"]);
    assert!(Gguf::from_bytes(File { version: 2, ..sample() }.bytes()).is_ok());
    refuses(&File { counts: (Some(1 << 60), None), ..sample() }, &["1152921504606846976 tensors", "(byte 8)"]);
    refuses(
        &File { counts: (None, Some(900)), ..sample() },
        &["900 metadata entries of at least 13 bytes", "(byte 16)"],
    );
    assert_refused(
        Gguf::open("no-such-file.gguf").map_err(|error| match error {
            Error::Io { path, message, .. } => Error::Format { path, message },
            error => error,
        }),
        &["no-such-file.gguf"],
    );
}

#[test]
fn damaged_metadata_is_refused() {
    let with = |value| File::default().with("a.key", value);
    let long = |kind| Value(kind, u64::MAX.to_le_bytes().into());
    refuses(&with(Value(13, vec![0; 8])), &["the value of \"a.key\" has type 13", "(byte 37)"]);
    refuses(&with(Value(7, vec![2])), &["is a bool, and 2 is neither 0 nor 1"]);
    refuses(&with(Value(12, vec![0; 4])), &["the value of \"a.key\" takes 8 bytes, and 4 are left"]);
    refuses(&with(long(8)), &["takes 18446744073709551615 bytes, and 0 are left (byte 41)"]);
    refuses(&with(Value(8, [&2u64.to_le_bytes()[..], &[0xc3, 0x28]].concat())), &["the value of", "is not UTF-8"]);
    let array = |kind: u32, count: u64| Value(9, [&kind.to_le_bytes()[..], &count.to_le_bytes(), &[0; 20]].concat());
    refuses(&with(array(6, 6)), &["6 elements of at least 4 bytes do not fit the 20 bytes left (byte 45)"]);
    refuses(&with(array(8, 1 << 61)), &["strings of at least 8 bytes do not fit"]);
    refuses(&with(array(9, 2)), &["2 arrays of at least 12 bytes do not fit"]);
    refuses(&with(array(13, 0)), &["has elements of type 13"]);
    refuses(&with(Value(9, array(9, 1).1[..12].repeat(5))), &["nests arrays deeper than 4"]);
    refuses(&with(Value::u32(1)).with("a.key", Value::u32(2)), &["the metadata has the key \"a.key\" twice"]);
    let key = File { counts: (None, Some(1)), ..File::default() }.bytes();
    let key = [key, u64::MAX.to_le_bytes().into(), vec![0; 20]].concat();
    assert_refused(Gguf::from_bytes(key), &["the key of metadata entry 0 takes 18446744073709551615 bytes"]);

    for value in [Value::u32(0), Value::u32(48)] {
        refuses(&File::default().with("general.alignment", value), &["`general.alignment` is", "not a power of two"]);
    }
    refuses(&File::default().with("general.alignment", Value::u16(32)), &["`general.alignment` is a u16"]);
    let file = File { alignment: 256, ..sample() }.with("general.alignment", Value::u32(256));
    let file = Gguf::from_bytes(file.bytes()).unwrap();
    assert_eq!(file.load("dense", &open("vulkan")).unwrap().to_vec::<f32>().unwrap()[5], 6.0);
}

#[test]
fn damaged_tensors_are_refused() {
    let file = |tensor| File::default().tensor(tensor);
    let numbers = || vec![0; 24];
    refuses(&file(tensor("x", &[1; 5], 0, numbers())), &["tensor \"x\" has 5 axes, and 4 are the most"]);
    refuses(&file(tensor("x", &[6], 99, numbers())), &["tensor \"x\" has the unknown type 99"]);
    refuses(
        &file(tensor("x", &[7], 0, numbers())),
        &["tensor \"x\" has 28 bytes from 0 on behind byte 64", "88 bytes"],
    );
    refuses(&file(tensor("x", &[16, 2], 2, numbers())), &["of Q4_0 has rows of 16 elements", "no multiple of 32"]);
    refuses(&file(tensor("x", &[1 << 32, 1 << 32], 0, numbers())), &["more elements than a file can hold"]);
    refuses(&file(tensor("x", &[1 << 62], 0, numbers())), &["more elements than a file can hold"]);
    let placed = |offset, axes: &[u64]| gguf_file::Tensor { offset: Some(offset), ..tensor("x", axes, 0, numbers()) };
    refuses(&file(placed(16, &[1])), &["begins at 16, which is no multiple of the alignment 32"]);
    refuses(&file(placed(64, &[1])), &["has 4 bytes from 64 on"]);
    refuses(&file(placed(u64::MAX - 31, &[6])), &["has 24 bytes from 18446744073709551584 on"]);
    refuses(&file(placed(u64::MAX - 31, &[100])), &["beyond the file's end"]);
    refuses(
        &file(tensor("x", &[6], 0, numbers())).tensor(tensor("x", &[6], 0, numbers())),
        &["two tensors have the name \"x\""],
    );
    let name = gguf_file::Tensor { name: vec![0xff], ..tensor("", &[1], 0, numbers()) };
    refuses(&file(name), &["the name of tensor 0 is not UTF-8"]);

    // Wherever a header is cut off, something is missing.
    let bytes = sample().bytes();
    for length in 0..bytes.len() {
        assert!(Gguf::from_bytes(&bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
    }
}

#[test]
fn a_split_file_is_opened_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u16, count: u16, names: &[&str]| {
        let path = folder.path().join(format!("x-{:05}-of-{count:05}.gguf", number + 1));
        let mut file = File::default().with("split.no", Value::u16(number)).with("split.count", Value::u16(count));
        file = file.with("split.tensors.count", Value(5, 3i32.to_le_bytes().into()));
        if number == 0 {
            file = file.with("general.name", Value::string("x"));
        }
        let number = f32::from(number).to_le_bytes();
        for name in names {
            file = file.tensor(tensor(name, &[1], 0, number.into()));
        }
        std::fs::write(&path, file.bytes()).unwrap();
        path
    };
    let (first, second) = (part(0, 2, &["a"]), part(1, 2, &["b", "c"]));
    let file = Gguf::open_shards([&second, &first]).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(file.get("general.name").unwrap().as_str().unwrap(), "x");
    let device = open("vulkan");
    assert_eq!(file.load("c", &device).unwrap().to_vec::<f32>().unwrap(), [1.0]);

    assert_refused(Gguf::open(&second), &["it is part 2 of 2, and 1 are given", "open_shards"]);
    assert_refused(Gguf::open_shards([&first, &first]), &["tensor \"a\" is also in another file, number 1"]);
    let again = folder.path().join("again.gguf");
    std::fs::copy(part(0, 2, &["d"]), &again).unwrap();
    let first = part(0, 2, &["a"]);
    assert_refused(Gguf::open_shards([&first, &again]), &["it is the same part as", "give each part once"]);
    assert_refused(Gguf::open_shards([&first, &part(2, 2, &["b"])]), &["its part number 2 is not below 2"]);
    assert_refused(Gguf::open_shards([first, part(1, 2, &["b"])]), &["should have 3 tensors together", "they have 2"]);
}
