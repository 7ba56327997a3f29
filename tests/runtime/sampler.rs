//! Drawing tokens in captured steps.

use super::count_launches;
use marquetry::nn::{Sampler, Sampling};
use marquetry::{DType, Device, Result, Tensor};

on_each_device! {
    a_step_draws_what_calls_draw
    a_step_serves_other_settings
    a_draw_is_one_launch
}

const VOCABULARY: usize = 100;

fn logits(device: &Device) -> Result<Tensor> {
    let numbers: Vec<f32> = (0..2 * VOCABULARY).map(|i| (i * 37 % 101) as f32 / 20.0).collect();
    Tensor::from_vec(numbers, (2, VOCABULARY), device)
}

fn sampling(seed: u64) -> Sampling {
    Sampling::default().top_k(50).top_p(0.9).repetition(1.2).presence(0.1).frequency(0.3).seed(seed)
}

fn started(seed: u64, device: &Device) -> Result<Sampler> {
    let mut sampler = Sampler::new(VOCABULARY, 2, device)?;
    sampler.start(0, &sampling(seed))?;
    sampler.start(1, &sampling(seed + 1))?;
    sampler.observe(1, &[3, 5, 3, 99])?;
    Ok(sampler)
}

/// Each run draws the next tokens, without a word from the host in between.
fn a_step_draws_what_calls_draw(device: &Device) -> Result<()> {
    let logits = logits(device)?;
    let expected = started(1, device)?;
    let expected = (0..10).map(|_| expected.sample(&logits)?.to_vec::<u32>()).collect::<Result<Vec<_>>>()?;
    assert!(expected.iter().any(|tokens| *tokens != expected[0]));
    let sampler = started(1, device)?;
    let step = device.capture(|args| {
        let logits = args.input("logits", (2, VOCABULARY), DType::F32)?;
        Ok([("tokens", sampler.sample(&logits)?)])
    })?;
    let runs = (0..10).map(|_| step.run([("logits", (&logits).into())])?.get("tokens").cloned());
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let found = runs.iter().map(Tensor::to_vec::<u32>).collect::<Result<Vec<_>>>()?;
    assert_eq!(found, expected);
    Ok(())
}

/// A step that was captured before a sequence begins again draws by the new settings.
fn a_step_serves_other_settings(device: &Device) -> Result<()> {
    let logits = logits(device)?;
    let mut sampler = started(1, device)?;
    let step = device.capture(|_| Ok([("tokens", sampler.sample(&logits)?)]))?;
    let run = || step.run([])?.get("tokens")?.to_vec::<u32>();
    let first = run()?;
    run()?;
    sampler.start(0, &Sampling::greedy())?;
    let numbers = logits.narrow(0, 0, 1)?.to_vec::<f32>()?;
    let best = (0..VOCABULARY).max_by(|&a, &b| numbers[a].total_cmp(&numbers[b]).then(b.cmp(&a)));
    assert_eq!(Some(run()?[0] as usize), best);
    // The same settings and seed give the same token again.
    sampler.start(0, &sampling(1))?;
    assert_eq!(run()?[0], first[0]);
    Ok(())
}

fn a_draw_is_one_launch(device: &Device) -> Result<()> {
    let (logits, sampler) = (logits(device)?, started(1, device)?);
    logits.realize()?;
    let (_, launches) = count_launches(device, || sampler.sample(&logits))?;
    assert_eq!(launches, 1);
    Ok(())
}
