//! The list of all cases.

use libtest_mimic::Failed;
use marquetry::Device;
use std::sync::Arc;

/// How a case ends. Any error becomes a failure by `?`.
pub type Outcome<T = ()> = Result<T, Failed>;

pub struct Case {
    pub op: &'static str,
    /// What of the operation is tried, such as `f32::transposed`.
    pub variant: String,
    pub run: Arc<dyn Fn(&Device) -> Outcome + Send + Sync>,
}

/// Collects the cases.
#[derive(Default)]
pub struct Suite {
    pub cases: Vec<Case>,
}

impl Suite {
    pub fn add(
        &mut self,
        op: &'static str,
        variant: impl Into<String>,
        run: impl Fn(&Device) -> Outcome + Send + Sync + 'static,
    ) {
        self.cases.push(Case { op, variant: variant.into(), run: Arc::new(run) });
    }
}

/// The feature for want of which a case failed: one that the device does not claim to have, and that the error names.
pub fn missing_feature(device: &Device, failed: &Failed) -> Option<&'static str> {
    let features = device.info().features;
    let lacking = [
        (features.f16, "16-bit floats"),
        (features.i64, "64-bit integers"),
        (features.f64, "64-bit floats"),
        (features.subgroups, "subgroup operations"),
        (features.atomics, "atomic operations"),
    ];
    let message = failed.message().unwrap_or_default();
    let named = |name: &str| message.contains(&format!("does not support {name}"));
    lacking.into_iter().find(|(has, name)| !has && named(name)).map(|(_, name)| name)
}
