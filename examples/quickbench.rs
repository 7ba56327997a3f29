//! temporary
use marquetry::{DType, Device, Tensor};
fn main() {
    let device: Device = std::env::args().nth(1).unwrap().parse().unwrap();
    let n: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let what = std::env::args().nth(3).unwrap();
    let dtype = if what.contains("f16") { DType::F16 } else { DType::F32 };
    let a = Tensor::randn(0f32, 1.0, (n, n), &device).unwrap().to_dtype(dtype).unwrap();
    let b = Tensor::randn(0f32, 1.0, (n, n), &device).unwrap().to_dtype(dtype).unwrap();
    let b = if what.contains("tn") { b.t().unwrap() } else { b };
    let a = if what.contains("at") { a.t().unwrap() } else { a };
    a.eval().unwrap();
    b.eval().unwrap();
    let start = std::time::Instant::now();
    let mut times = Vec::new();
    while start.elapsed().as_secs_f64() < 1.2 {
        let (_, profile) = device
            .profile(|| {
                let y = a.matmul(&b).unwrap();
                y.eval().unwrap();
            })
            .unwrap();
        let t: f64 =
            profile.commands.iter().filter(|c| c.name.contains("matmul")).map(|c| c.duration().as_secs_f64()).sum();
        if start.elapsed().as_secs_f64() > 0.5 {
            times.push(t);
        }
    }
    times.sort_by(f64::total_cmp);
    let t = times[times.len() / 2];
    println!(
        "{} {n} {what} block {:?}: {:.1} us {:.2} TFLOP/s",
        std::env::args().nth(1).unwrap(),
        std::env::var("TRY_BLOCK").ok(),
        t * 1e6,
        2.0 * (n as f64).powi(3) / t / 1e12
    );
}
