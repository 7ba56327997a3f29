//! Draws the next tokens of sequences.

use super::{largest_team, subgroup_lanes};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::engine::launch::Launch;
use crate::kernels::next_token::{NextToken, Parameters};
use crate::kernels::parameters::Strided;
use crate::kernels::workgroup::{Team, Turn};
use crate::lazy::allocate;
use crate::tensor::Tensor;

impl Tensor {
    /// Draws a token for each row of logits, `(sequences, vocabulary)`, by the settings and the history of the row. The
    /// history is `(sequences, vocabulary)`. The kernel changes both.
    pub(crate) fn next_tokens(&self, settings: &Tensor, history: &Tensor, op: &'static str) -> Result<Tensor> {
        let (device, tuning) = (self.device(), self.device().tuning());
        if !tuning.loads.several && self.dtype() != DType::F32 {
            // A software device takes seconds to compile the kernel, and none to convert the logits.
            return self.to_dtype(DType::F32)?.next_tokens(settings, history, op);
        }
        let [sequences, vocabulary] = self.dims()[..] else { unreachable!("logits have two axes") };
        let logits = Strided::from(self.layout());
        let in_quads =
            [vocabulary, logits.offset].into_iter().chain(logits.strides[..1].iter().map(|s| s.unsigned_abs()));
        let turn = if !tuning.loads.several {
            Turn::Single
        } else if logits.strides[1] == 1 && in_quads.into_iter().all(|n| n.is_multiple_of(4)) {
            Turn::Quads
        } else {
            Turn::Singles
        };
        let most = tuning.sampling.invocations.min(largest_team(device));
        // Fewer invocations take less workgroup memory.
        let memory = device.info().limits.max_workgroup_memory;
        let lanes = if NextToken::memory(most) <= memory { most } else { most.min(256) };
        let kernel =
            NextToken { dtype: self.dtype(), team: Team::Workgroup(lanes), subgroup: subgroup_lanes(device), turn };
        // Each invocation of a team has the same room in the list.
        let list = vocabulary.next_multiple_of((lanes * turn.width()) as usize);
        let scratch = |columns| allocate(&(sequences, columns).into(), DType::U32, device, op);
        let (keys, list) = (scratch(vocabulary)?, scratch(2 * list)?);
        let tokens = allocate(&sequences.into(), DType::U32, device, op)?;
        let buffers = &[self.buffer()?, settings.buffer()?, history.buffer()?, &keys, &list, &tokens];
        let parameters = Parameters { vocabulary, logits };
        device.runtime().run(Launch { kernel, buffers, parameters, groups: sequences })?;
        Ok(Tensor::from_buffer(tokens, sequences.into(), DType::U32, device))
    }
}
