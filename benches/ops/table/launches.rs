//! What a launch costs.

use crate::case::{Bound, Case, Cost, Prepared, Rate};
use crate::close::{ensure_all_close, numbers};
use marquetry::Tensor;

/// Small operations, each on the result of the one before.
pub fn case() -> Case {
    const LENGTH: usize = 1024;
    Case {
        name: "dependent launches".into(),
        cost: Cost::of_memory(2 * 4 * LENGTH),
        rate: Rate::Count(1e-6, "million/s"),
        bound: Bound::None,
        prepare: Box::new(|device| {
            let start = Tensor::randn(0f32, 1.0, LENGTH, device)?;
            start.realize()?;
            let x = start.clone();
            Ok(Prepared::chain(
                start,
                |_, x| x + 1.0,
                move |y| {
                    let expected: Vec<f64> = numbers(&x)?.into_iter().map(|x| x + 1.0).collect();
                    // One rounding.
                    ensure_all_close("x + 1", &numbers(y)?, &expected, 2f64.powi(-24))
                },
            ))
        }),
    }
}
