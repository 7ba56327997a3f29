//! How an expression is laid out for its kernel: it merges axes, and reads four elements at a time if possible.

use super::fusion::Fused;
use super::graph::{Graph, Seen};
use super::view::View;
use crate::backend::info::MemoryKind;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::layout::collapse_all;
use crate::base::shape::{Dims, checked_elements};
use crate::base::word::Word;
use crate::device::Device;
use crate::engine::plan_cache::Plan;
use crate::engine::pool::Buffer;
use crate::kernels::elementwise::{Elementwise, InputLayout, Parameters};
use crate::kernels::parameters::Strided;
use smallvec::SmallVec;

/// How a graph of pending expressions over buffers runs as one kernel. Graphs of the same [key](Graph::key) have the
/// same plan.
pub(super) struct FusedPlan {
    plan: Plan<Elementwise>,
    /// The size of the result in bytes.
    bytes: u64,
    inputs: SmallVec<[(Seen, InputLayout); 4]>,
    /// Operands of the graph.
    scalars: SmallVec<[(usize, DType); 8]>,
    /// The nodes that are stored beside the result, and their sizes in bytes.
    kept: SmallVec<[(u8, u64); 2]>,
    /// The nodes that the kernel computes and does not store, although they are needed again.
    repeated: SmallVec<[u8; 2]>,
}

impl FusedPlan {
    /// Launches the kernel. Returns the result.
    pub fn run(&self, graph: &Graph<'_>, device: &Device) -> Result<Buffer> {
        let allocate = |bytes| device.runtime().allocate(bytes, MemoryKind::Device);
        let result = allocate(self.bytes)?;
        // Most often nothing is kept, and no buffers have to be collected.
        if self.kept.is_empty() {
            self.launch(graph, device, &result, &[])?;
        } else {
            let kept =
                self.kept.iter().map(|&(_, bytes)| allocate(bytes)).collect::<Result<SmallVec<[Buffer; 2]>>>()?;
            self.launch(graph, device, &result, &kept)?;
            for (&(node, _), buffer) in self.kept.iter().zip(kept) {
                if let Some(storage) = &graph.node(node).storage {
                    storage.keep(buffer);
                }
            }
        }
        for &node in &self.repeated {
            if let Some(storage) = &graph.node(node).storage {
                storage.note_computed();
            }
        }
        Ok(result)
    }

    /// Launches the kernel, which stores its `result` and what is `kept` beside it.
    fn launch(&self, graph: &Graph<'_>, device: &Device, result: &Buffer, kept: &[Buffer]) -> Result<()> {
        let mut buffers: SmallVec<[&Buffer; 12]> = SmallVec::new();
        for (input, _) in &self.inputs {
            let storage = graph.storage(input.operand);
            debug_assert!(storage.is_some(), "what waits for a product has no plan");
            if let Some(storage) = storage {
                buffers.push(storage.buffer()?);
            }
        }
        buffers.push(result);
        buffers.extend(kept);
        let value = |operand: usize| graph.operands()[operand].value;
        let offset = |(input, layout): &(Seen, InputLayout)| layout.offset(input.offset(graph));
        let scalar = |&(operand, dtype): &(usize, DType)| Word::of_bits(value(operand), dtype).words();
        let scalars = self.scalars.iter().flat_map(scalar);
        device.runtime().run_plan(&self.plan, &buffers, self.inputs.iter().map(offset).chain(scalars))
    }
}

impl Fused {
    /// Plans the launch, in which all inputs have buffers. The expression must not be empty. Returns `None` if the
    /// strides do not fit a parameter block.
    pub(super) fn plan(&self, graph: &Graph<'_>, device: &Device) -> Result<Option<FusedPlan>> {
        let inputs = &self.inputs;
        let strided: SmallVec<[usize; 4]> = (0..inputs.len()).filter(|&i| is_strided(&inputs[i])).collect();
        let views: Vec<&[isize]> = strided.iter().map(|&i| inputs[i].strides()).collect();
        let (lengths, strides) = if views.is_empty() { Default::default() } else { collapse_all(self.shape(), &views) };
        let mut layouts: SmallVec<[InputLayout; 4]> = inputs.iter().map(|_| InputLayout::Contiguous).collect();
        for (&i, strides) in strided.iter().zip(&strides) {
            layouts[i] = strided_layout(&inputs[i], &lengths, strides);
        }
        let kernel = Elementwise {
            expr: self.expr.clone(),
            kept: self.kept.iter().map(|kept| kept.term).collect(),
            inputs: inputs.iter().zip(&layouts).map(|(input, &layout)| (input.dtype, layout)).collect(),
            rank: lengths.len(),
            scalars: self.scalars.iter().map(|word| word.dtype).collect(),
            invocations: device.elementwise_workgroup(),
            quads: match device.tuning().loads.several {
                true => Elementwise::fours(&self.expr, inputs.iter().map(|input| input.dtype)),
                false => 1,
            },
        };
        if !device.takes(&kernel) {
            return Ok(None);
        }
        let mut strides = strides.into_iter();
        let views = layouts.iter().map(|layout| match layout {
            InputLayout::Contiguous => Strided { offset: 0, strides: Dims::new() },
            _ => Strided { offset: 0, strides: strides.next().unwrap_or_default() },
        });
        let count = checked_elements(self.shape(), "elementwise")?;
        let scalars = self.scalars.iter().copied().collect();
        let parameters = Parameters { count, lengths, inputs: views.collect(), scalars };
        let groups = count.div_ceil(kernel.elements_per_group());
        let plan = device.runtime().plan(kernel, parameters, groups, &Parameters::set_numbers)?;
        let bytes = |dtype: DType| (count * dtype.size_in_bytes()) as u64;
        let seen = self.parts.inputs.iter().zip(inputs);
        let seen = seen.map(|(&operand, input)| Seen::new(graph, operand, input.layout()));
        let kept = self.parts.kept.iter().zip(&self.kept).map(|(&node, kept)| (node, bytes(kept.dtype)));
        let scalars = self.parts.scalars.iter().zip(&self.scalars).map(|(&operand, word)| (operand, word.dtype));
        Ok(Some(FusedPlan {
            plan,
            bytes: bytes(self.expr.dtype()),
            inputs: seen.zip(layouts.iter().copied()).collect(),
            scalars: scalars.collect(),
            kept: kept.collect(),
            repeated: self.parts.repeated.clone(),
        }))
    }
}

/// Whether the elements are not contiguous, or do not start at a multiple of four.
pub(super) fn is_strided(input: &View) -> bool {
    !(input.is_contiguous() && input.layout().offset.is_multiple_of(4))
}

/// Returns how an input is read along axes of these lengths.
pub(super) fn strided_layout(input: &View, lengths: &[usize], strides: &[isize]) -> InputLayout {
    let (Some((&inner, outer)), Some(&length)) = (strides.split_last(), lengths.last()) else {
        return InputLayout::Strided;
    };
    let fours = input.layout().offset.is_multiple_of(4) && outer.iter().all(|stride| stride % 4 == 0);
    match inner {
        _ if !length.is_multiple_of(4) => InputLayout::Strided,
        0 => InputLayout::Repeated,
        1 if fours => InputLayout::StridedQuads,
        _ => InputLayout::Strided,
    }
}
