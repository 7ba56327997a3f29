//! Calls that block elsewhere.

use crate::devices;
use crate::suite::Outcome;
use marquetry::io::SafeTensors;
use marquetry::{DType, Device, Error, Tensor};

type Call = fn(&Device, &Tensor) -> marquetry::Result<()>;

/// Each call, and its twin.
const CALLS: [(&str, &str, Call); 14] = [
    ("to_vec", "to_vec_async", |_, x| x.to_vec::<f32>().map(drop)),
    ("to_vec2", "to_vec_async", |_, x| x.to_vec2::<f32>().map(drop)),
    ("read_into", "read_into_async", |_, x| x.read_into(&mut [0f32; 4])),
    ("to_scalar", "to_scalar_async", |_, x| x.sum_all()?.to_scalar::<f32>().map(drop)),
    ("nonzero", "nonzero_async", |_, x| x.nonzero().map(drop)),
    ("masked_select", "masked_select_async", |_, x| x.masked_select(&x.gt(0.0)?).map(drop)),
    ("synchronize", "synchronize_async", |device, _| device.synchronize()),
    ("profile", "profile_async", |device, _| device.profile(|| ()).map(drop)),
    ("best", "Device::best_async", |_, _| Device::best().map(drop)),
    ("webgpu", "Device::webgpu_async", |_, _| Device::webgpu(0).map(drop)),
    ("webgpu", "Device::webgpu_async", |_, _| "webgpu".parse::<Device>().map(drop)),
    ("to_vec", "to_vec_async", |_, x| x.exp()?.to_vec::<f32>().map(drop)),
    ("to_vec1", "to_vec_async", |_, x| x.i(0)?.to_vec1::<f32>().map(drop)),
    ("to_vec3", "to_vec_async", |_, x| x.unsqueeze(0)?.to_vec3::<f32>().map(drop)),
];

/// Fails unless each call is an error that names its twin, and the twin works.
pub async fn check() -> Outcome {
    let device = devices::open("webgpu")?;
    let x = Tensor::new([[1f32, -2.0], [3.0, -4.0]], &device)?;
    for (call, twin, run) in CALLS {
        match run(&device, &x) {
            Err(Error::WouldBlock { op, twin: named }) if (op, named) == (call, twin) => {}
            other => return Err(format!("{call}: {other:?}").into()),
        }
    }
    expect(Device::list().is_empty(), "list")?;
    let printed = format!("{x}");
    expect(printed.contains("to_vec_async"), &format!("printing: {printed}"))?;

    expect(x.to_vec_async::<f32>().await? == [1.0, -2.0, 3.0, -4.0], "to_vec_async")?;
    let mut row = [0f32; 4];
    x.read_into_async(&mut row).await?;
    expect(row == [1.0, -2.0, 3.0, -4.0], "read_into_async")?;
    expect(x.sum_all()?.to_scalar_async::<f32>().await? == -2.0, "to_scalar_async")?;
    expect(x.nonzero_async().await?.dims() == [4, 2], "nonzero_async")?;
    let positive = x.masked_select_async(&x.gt(0.0)?).await?;
    expect(positive.to_vec_async::<f32>().await? == [1.0, 3.0], "masked_select_async")?;
    expect(x.to_device_async(&device).await?.dims() == [2, 2], "to_device_async")?;
    device.synchronize_async().await?;
    let profiled = device.profile_async(async {}).await;
    expect(matches!(profiled, Err(Error::Unsupported { .. })), "profile_async")?;
    expect(Device::list_async().await.len() == 1, "list_async")?;

    let mut told = Vec::new();
    device.warm_up_async(|| Ok([x.powf(0.8125)?.sum(0)?]), |done, all| told.push((done, all))).await?;
    expect(!told.is_empty() && told.last() == Some(&(told.len(), told.len())), "warm_up_async")?;
    let step = device.capture_async(|args| Ok([("y", args.input("x", (2, 2), DType::F32)?.matmul(&x)?)])).await?;
    for factor in [1.0, 2.0] {
        let y = step.run([("x", (&x.mul(factor)?).into())])?;
        let expected = [-5.0, 6.0, -9.0, 10.0].map(|number: f32| number * factor as f32);
        expect(y.get("y")?.to_vec_async::<f32>().await? == expected, "capture_async")?;
    }

    // One tensor: a header of 56 bytes, and two numbers.
    let header = format!("{:<56}", r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#);
    let bytes = [&56u64.to_le_bytes()[..], header.as_bytes(), &1f32.to_le_bytes(), &2f32.to_le_bytes()].concat();
    let file = SafeTensors::from_bytes(bytes)?;
    expect(file.load_all(&device)?["x"].to_vec_async::<f32>().await? == [1.0, 2.0], "a file in memory")
}

fn expect(holds: bool, what: &str) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{what} is wrong").into()) }
}
