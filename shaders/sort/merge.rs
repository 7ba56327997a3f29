//! Merges pairs of sorted runs, until one is left: for software devices. The kernel takes no workgroup memory, which is
//! slow there, and their compilers are quick with it. If only the first elements are wanted, a run is cut to them.

use super::*;

/// Elements that one invocation merges.
pub(crate) const MERGED: u32 = 8;

/// Merges pairs of runs. Buffers: the tables before the merge, and those after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SortMerge {
    pub input: Input,
    pub output: Output,
}

parameters! {
    config: SortMerge;
    host: MergeParameters;
    device: Declared;
    /// The total number of invocations.
    invocations: Size,
    /// The number of invocations per row.
    per_row: Size,
    /// The number of invocations per pair.
    per_pair: Size,
    /// The length of a row before the merge.
    length: Size,
    /// The length of a run before the merge.
    run: Size,
    /// The length of a row after the merge.
    out_length: Size,
    /// The length of a run after the merge.
    out_run: Size,
    /// All ones for descending order, else 0.
    mask: Bits,
}

impl Family for SortMerge {
    fn name(&self) -> String {
        format!("sort_merge({}{})", self.input.describe(), self.output.describe())
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { invocations, per_row, per_pair, length, run, out_length, out_run, mask } = self.declare(k);
        let dtype = self.input.dtype();
        let x = Reader::new(k, self.input, None, length, self.output.places);
        let y = Writer::new(k, self.output, dtype);

        let i = k.global_index();
        k.when(i.lt(invocations), || {
            let (row, pair) = (i / per_row, i % per_row / per_pair);
            // The runs a and b (b may be shorter or empty), and the first element to merge, counted in both.
            let a = pair * 2 * run;
            let a_length = (length - a).min(run);
            let b = a + a_length;
            let b_length = (length - b).min(run);
            let first = i % per_row % per_pair * MERGED;
            let end = (a_length + b_length).min(out_run).min(first + MERGED);
            let load = x.row(row);
            // Loads the element at a place of a run. Beyond the row, any element will do.
            let element = |place: Value<'k>| load(place.min(length - 1));
            let at_most =
                |a: &[Value<'k>], b: &[Value<'k>]| compare(&key(dtype, a, mask), &key(dtype, b, mask), |a, b| a.le(b));
            // Finds how many of the elements before `first` are from a (N. Deo, A. Jain and M. Medidi, "An Optimal
            // Parallel Algorithm for Merging Using Multiselection", 1994). If keys are equal, the elements of a come
            // first.
            let (from_a, most) = (k.var(first.max(b_length) - b_length), k.var(first.min(a_length)));
            k.while_(
                || from_a.get().lt(most.get()),
                || {
                    let middle = (from_a.get() + most.get()) / 2;
                    let more = at_most(&element(a + middle), &element(b + (first - 1 - middle)));
                    from_a.set(more.select(middle + 1, from_a.get()));
                    most.set(more.select(most.get(), middle));
                },
            );
            let from_b = k.var(first - from_a.get());
            k.for_range(first, end, |place| {
                let (i, j) = (from_a.get(), from_b.get());
                let (of_a, of_b) = (element(a + i), element(b + j));
                let is_a = j.ge(b_length) | (i.lt(a_length) & at_most(&of_a, &of_b));
                let bits: Vec<_> = of_a.iter().zip(&of_b).map(|(&a, &b)| is_a.select(a, b)).collect();
                let target = row * out_length + pair * out_run + place;
                y.store(k, target, &bits, || x.place(row, is_a.select(a + i, b + j)));
                from_a.set(is_a.select(i + 1, i));
                from_b.set(is_a.select(j, j + 1));
            });
        });
    }

    fn samples() -> Vec<Self> {
        let table = |dtype| SortMerge { input: Input::Table { dtype, places: true }, output: Output::BOTH };
        [DType::F32, DType::I64].map(table).into()
    }
}
