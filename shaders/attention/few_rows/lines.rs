//! [`Lines`]: where a lane reads keys or values, in runs of 16 bytes.

use super::super::{AttentionBlock, Operand};
use crate::kernels::elements::Runs;
use crate::kernels::pages::PAGE;
use crate::shader::{Value, Var};

/// Keys or values, one line for each.
pub(super) struct Lines<'k> {
    pub source: Runs<'k>,
    /// Where the lane's first run of the first line begins, and of the last one.
    first: Value<'k>,
    last: Value<'k>,
    /// The distance between lines. If there are pages, also the distance between pages.
    stride: Value<'k>,
    page_stride: Option<Value<'k>>,
}

impl<'k> Lines<'k> {
    /// Returns the lines of an operand, from a run of each on. A run has `per_run` elements.
    pub fn new(
        p: &AttentionBlock<'k, Runs<'k>>,
        operand: &Operand<'k, Runs<'k>>,
        per_run: u32,
        run: Value<'k>,
    ) -> Self {
        let first = operand.first / per_run + run;
        let stride = operand.strides.stride(2) / per_run;
        Lines {
            source: operand.source,
            first,
            last: first + (p.seq_kv - 1) * stride,
            stride,
            page_stride: operand.pages.map(|_| operand.strides.stride(3) / per_run),
        }
    }

    /// Returns where some lines of the step that begins at a key are. The first one is `line` behind that key, and each
    /// is `apart` behind the one before. Beyond the last key, that is where its line is, or a place in the page.
    pub fn places(&self, page: &StepPage<'k>, [key, line]: [Value<'k>; 2], apart: &[u32]) -> Vec<Value<'k>> {
        match page.0.as_ref().zip(self.page_stride) {
            Some((page, page_stride)) => {
                let own = self.first + page.get() * page_stride + (key % PAGE + line) * self.stride;
                apart.iter().map(|&n| own + self.stride * n).collect()
            }
            None => {
                let own = self.first + (key + line) * self.stride;
                apart.iter().map(|&n| (own + self.stride * n).min(self.last)).collect()
            }
        }
    }
}

/// The page of the keys that are loaded next, if keys lie in pages.
pub(super) struct StepPage<'k>(Option<Var<'k>>);

impl<'k> StepPage<'k> {
    pub fn new(p: &AttentionBlock<'k, Runs<'k>>) -> Self {
        StepPage(p.k.pages.map(|_| p.kernel.var(p.kernel.u32(0))))
    }

    /// Looks up the page of the step that begins at a key, before its keys are loaded. Behind the last page, that is
    /// the last one.
    pub fn find(&self, p: &AttentionBlock<'k, Runs<'k>>, key: Value<'k>) {
        if let Some((page, pages)) = self.0.as_ref().zip(p.k.pages) {
            page.set(pages.page_of(key.min(p.seq_kv - 1)));
        }
    }
}
