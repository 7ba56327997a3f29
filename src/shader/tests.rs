//! The kernel language on devices, as far as the crate's own kernels do not show it.

use super::*;
use crate::backend::contract::{Backend, Command, MemoryUse, Region, Step};
use crate::backend::info::MemoryKind;
use crate::backend::registry;
use crate::base::error::Error;
use half::{bf16, f16};
use rspirv::dr::Operand;
use rspirv::spirv::{Decoration, Op};
use smallvec::SmallVec;
use std::sync::mpsc;

/// Every backend that is compiled in.
fn backends() -> Vec<Box<dyn Backend>> {
    let open = |kind| match pollster::block_on(registry::open(kind, 0)) {
        Ok(backend) => backend,
        Err(error) => panic!("a {kind} device: run `make setup` ({error})"),
    };
    registry::compiled_in().map(open).collect()
}

fn allocate(backend: &dyn Backend, words: usize, memory: MemoryUse) -> crate::backend::contract::BufferId {
    backend.allocate((words as u64 * 4).next_multiple_of(16), memory).unwrap()
}

/// Runs one dispatch. The first bindings are the inputs, in order. The last is an output of `words` words, zero at
/// first.
fn run(backend: &dyn Backend, module: &Module, inputs: &[&[u32]], words: usize, groups: u32) -> Vec<u32> {
    let kernel = backend.compile(module, None).unwrap().kernel;
    let mut steps = Vec::new();
    let mut buffers = SmallVec::new();
    let zeros = vec![0; words];
    for data in inputs.iter().copied().chain([&*zeros]) {
        let staging = allocate(backend, data.len(), MemoryUse::Upload);
        backend.write(staging, 0, bytemuck::cast_slice(data)).unwrap();
        let buffer = allocate(backend, data.len(), MemoryUse::Kernels(MemoryKind::Device));
        let region = Region::linear(data.len() as u64 * 4);
        let copy = Command::CopyRegion { src: staging, dst: buffer, region };
        steps.push(Step { command: copy, barrier: false });
        buffers.push(buffer);
    }
    let output = buffers[inputs.len()];
    let dispatch = Command::Dispatch { kernel, buffers, parameters: SmallVec::new(), groups: [groups, 1, 1] };
    steps.push(Step { command: dispatch, barrier: true });
    let readback = allocate(backend, words, MemoryUse::Readback);
    let copy = Command::CopyRegion { src: output, dst: readback, region: Region::linear(words as u64 * 4) };
    steps.push(Step { command: copy, barrier: true });
    let ticket = backend.submit(&steps, false).unwrap();
    let (sender, receiver) = mpsc::channel();
    let done = move |bytes: crate::Result<&[u8]>| sender.send(bytes.map(bytemuck::pod_collect_to_vec)).unwrap();
    backend.read(readback, words as u64 * 4, ticket, Box::new(done));
    backend.wait(ticket).unwrap();
    receiver.try_recv().unwrap().unwrap()
}

/// Returns the forms of a kernel that a device may want.
fn forms(target: Target) -> Vec<Target> {
    let in_turns = Target { lanes_at_once: Some(4), ..target };
    let in_pairs = Target { loads_in_pairs: true, ..target };
    match target.dialect {
        Dialect::OpenCl => vec![target],
        Dialect::Vulkan => vec![target, in_turns, in_pairs],
    }
}

/// Writes a kernel for each backend, in all forms, and checks what it computes.
pub(crate) fn check(workgroup: u32, write: impl Fn(&KernelBuilder), inputs: &[&[u32]], groups: u32, expected: &[u32]) {
    let backends = backends();
    for (backend, target) in backends.iter().flat_map(|b| forms(b.target()).into_iter().map(move |form| (b, form))) {
        let k = KernelBuilder::new("test", target, workgroup);
        write(&k);
        let module = k.finish().unwrap();
        match module.requires.missing_from(&backend.info().features) {
            None => {
                let found = run(&**backend, &module, inputs, expected.len(), groups);
                let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "on {}, {target:?}: {found:x?} is not {expected:x?}", backend.info());
            }
            Some(_) => {
                assert!(matches!(backend.compile(&module, None), Err(Error::Unsupported { .. })), "{}", backend.info())
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn loops_and_branches() {
    // The number of steps of the Collatz sequence, at most 50. Odd starts add 1000, even ones 2000.
    let host = |start: u32| {
        let (mut x, mut steps) = (start, 0);
        while x != 1 && steps < 50 {
            x = if x % 2 == 0 { x / 2 } else { 3 * x + 1 };
            steps += 1;
        }
        steps + if start % 2 == 1 { 1000 } else { 2000 }
    };
    let starts: Vec<u32> = (1..=64).collect();
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::U32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let i = k.global_index();
        let (n, steps) = (k.var(x.load(i)), k.var(k.u32(0)));
        k.while_(
            || n.get().ne(1) & steps.get().lt(50),
            || {
                k.when((n.get() % 2).eq(0), || n.set(n.get() / 2)).otherwise(|| n.set(n.get() * 3 + 1));
                steps.set(steps.get() + 1);
            },
        );
        k.when((x.load(i) & 1).eq(1), || steps.set(steps.get() + 1000)).otherwise(|| steps.set(steps.get() + 2000));
        y.store(i, steps.get());
    };
    let expected: Vec<u32> = starts.iter().map(|&x| host(x)).collect();
    check(64, write, &[&starts], 1, &expected);
}

#[test]
fn arrays_begin_at_any_element() {
    let write = |k: &KernelBuilder| {
        let (x, v) = (k.buffer("x", Type::U32, Access::Read), k.buffer("v", Type::vec4(Scalar::U32), Access::Read));
        let y = k.buffer("y", Type::vec2(Scalar::U32), Access::Write);
        let i = k.global_index();
        let (x, v) = (x.after(i * 2), v.after(i / 4));
        let [a, b] = [x.load(1), v.load(1).lane(2) + v.load_lane(i % 4 + 4)];
        y.after(i / 2).store(i - i / 2, k.vector(&[a, b]));
    };
    let (x, v): (Vec<u32>, Vec<u32>) = ((0..16).collect(), (100..116).collect());
    let expected: Vec<u32> = (0..8).flat_map(|i| [2 * i + 1, 106 + 4 * (i / 4) + 104 + i]).collect();
    check(8, write, &[&x, &v], 1, &expected);
}

#[test]
fn loops_that_test_behind_their_body() {
    // Each invocation adds up every third number from its own on, below 20.
    let write = |k: &KernelBuilder| {
        let y = k.buffer("y", Type::U32, Access::Write);
        let sum = k.var(k.u32(0));
        k.for_some(k.global_index(), k.u32(20), 3, |i| sum.set(sum.get() + i));
        y.store(k.global_index(), sum.get());
    };
    let expected: Vec<u32> = (0..20).map(|i| (i..20).step_by(3).sum()).collect();
    check(4, write, &[], 5, &expected);
}

#[test]
fn local_arrays_vectors_and_unrolled_loops() {
    // Each invocation reverses four numbers through an array with a dynamic index.
    let numbers: Vec<u32> = (100..132).collect();
    let write = |k: &KernelBuilder| {
        let x = k.buffer("x", Type::vec4(Scalar::U32), Access::Read);
        let y = k.buffer("y", Type::vec4(Scalar::U32), Access::Write);
        let i = k.global_index();
        let array = k.local_array(Type::U32, 4);
        k.for_unrolled(4, |j| array.store(k.u32(3) - j, x.load_lane(i * 4 + j)));
        let sum = k.var(k.u32(0));
        k.for_step(0, 4, 2, |j| sum.set(sum.get() + array.load(j)));
        let lanes = x.load(i).lanes();
        // The even places of the reversed array hold the odd lanes.
        let same = sum.get().eq(lanes[1] + lanes[3]);
        let reversed = k.vector(&[0, 1, 2, 3].map(|j: u32| array.load(j)));
        y.store(i, same.select(reversed, 0));
    };
    let expected: Vec<u32> = numbers.chunks(4).flat_map(|quad| quad.iter().rev().copied()).collect();
    check(8, write, &[&numbers], 1, &expected);
}

#[test]
fn arrays_of_truth_values() {
    let numbers: Vec<u32> = (0..64).collect();
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::U32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let (i, array) = (k.global_index(), k.local_array(Type::BOOL, 2));
        for bit in [0, 1] {
            array.store(bit, ((x.load(i) >> bit) & 1).eq(1));
        }
        y.store(i, array.load(x.load(i) % 2).convert(Scalar::U32));
    };
    // Even numbers tell their lowest bit, odd ones the next.
    let expected: Vec<u32> = numbers.iter().map(|x| (x >> (x % 2)) & 1).collect();
    check(32, write, &[&numbers], 2, &expected);
}

#[test]
fn vectors_of_floats_lane_by_lane() {
    // Each invocation loads two numbers as a vector, and each by itself.
    let numbers = bits(&(0..66).map(|i| i as f32 - 20.5).collect::<Vec<_>>());
    let write = |k: &KernelBuilder| {
        let x = k.buffer("x", Type::vec2(Scalar::F32), Access::Read);
        let y = k.buffer("y", Type::vec4(Scalar::U32), Access::Write);
        let i = k.global_index();
        let [a, b] = [0, 1].map(|lane| x.load(i).lane(lane).bitcast(Type::U32));
        let [c, d] = [0, 1].map(|lane| x.load_lane(i * 2 + lane).bitcast(Type::U32));
        y.store(i, k.vector(&[a, b, c, d]));
    };
    let expected: Vec<u32> = numbers.chunks(2).flat_map(|pair| [pair, pair].concat()).collect();
    check(33, write, &[&numbers], 1, &expected);
}

/// WGSL cannot bind a buffer twice. A buffer that is written could change behind the back of its second variable.
#[test]
fn lanes_are_bound_again_where_nothing_speaks_against_it() {
    let bound = |target, access| {
        let k = KernelBuilder::new("lanes", target, 8);
        let x = k.buffer("x", Type::vec4(Scalar::U32), access);
        let y = k.buffer("y", Type::U32, Access::Write);
        let lanes = [1, 6].map(|lane| x.load_lane(k.global_index() + lane));
        y.store(k.global_index(), lanes[0] + lanes[1]);
        let module = rspirv::dr::load_words(k.finish().unwrap().spirv().unwrap()).unwrap();
        let is_first = |operands: &[Operand]| operands.ends_with(&[Decoration::Binding.into(), 0u32.into()]);
        module.annotations.iter().filter(|annotation| is_first(&annotation.operands)).count()
    };
    assert_eq!(bound(Target::VULKAN, Access::Read), 2);
    assert_eq!(bound(Target::VULKAN, Access::ReadWrite), 1);
    assert_eq!(bound(Target::WEBGPU, Access::Read), 1);
}

#[test]
fn atomics_in_buffers_and_workgroup_memory() {
    // Each workgroup of 64 numbers takes their sum, maximum and minimum through workgroup memory. All take a sum by
    // compare-exchange, and one by exchange.
    let numbers: Vec<u32> = (0..256).map(|i| (i * 2_654_435_761u64 % 1000) as u32).collect();
    let write = |k: &KernelBuilder| {
        let x = k.buffer("x", Type::U32, Access::Read);
        let y = k.buffer("y", Type::U32, Access::ReadWrite);
        let (lane, group) = (k.local_index(), k.group_index());
        let shared = k.workgroup_array(Type::U32, 3);
        k.when(lane.eq(0), || {
            shared.store(0, k.u32(0));
            shared.store(1, k.u32(0));
            shared.store(2, k.u32(u32::MAX));
        });
        k.barrier();
        let number = x.load(k.global_index());
        shared.atomic_add(0, number);
        shared.atomic_max(1, number);
        shared.atomic_min(2, number);
        k.barrier();
        k.when(lane.lt(3), || {
            y.atomic_add(group * 3 + lane, shared.load(lane));
        });
        // Word 12 is the sum of all: read, add, and try until nobody came between.
        let (seen, open) = (k.var(k.u32(0)), k.var(k.bool(true)));
        k.while_(
            || open.get(),
            || {
                let before = seen.get();
                let found = y.atomic_compare_exchange(12, before, before + number);
                open.set(found.ne(before));
                seen.set(found);
            },
        );
        // Word 13 is the same: take the word and put it back, until nobody has put anything there in between.
        let carried = k.var(number);
        k.while_(
            || carried.get().ne(0),
            || {
                let taken = y.atomic_exchange(13, 0);
                carried.set(y.atomic_exchange(13, taken + carried.get()));
            },
        );
    };
    let mut expected: Vec<u32> = numbers
        .chunks(64)
        .flat_map(|group| [group.iter().sum(), *group.iter().max().unwrap(), *group.iter().min().unwrap()])
        .collect();
    expected.extend([numbers.iter().sum::<u32>(); 2]);
    check(64, write, &[&numbers], 4, &expected);
}

#[test]
fn subgroups() {
    let numbers: Vec<u32> = (0..64).map(|i| i * 7 % 31).collect();
    // Compared with the same through workgroup memory: 1 if all agree.
    let write = |k: &KernelBuilder| {
        let x = k.buffer("x", Type::U32, Access::Read);
        let y = k.buffer("y", Type::U32, Access::Write);
        let (i, lane, size) = (k.local_index(), k.subgroup_lane(), k.subgroup_size());
        let shared = k.workgroup_array(Type::U32, 64);
        let number = x.load(i);
        shared.store(i, number);
        k.barrier();
        let first = i - lane;
        let (sum, max, min) = (k.var(k.u32(0)), k.var(k.u32(0)), k.var(k.u32(u32::MAX)));
        k.for_range(0, size, |j| {
            let other = shared.load(first + j);
            sum.set(sum.get() + other);
            max.set(max.get().max(other));
            min.set(min.get().min(other));
        });
        let mirrored = size - 1 - lane;
        let agree = number.subgroup_sum().eq(sum.get())
            & number.subgroup_max().eq(max.get())
            & number.subgroup_min().eq(min.get())
            & number.subgroup_shuffle(mirrored).eq(shared.load(first + mirrored))
            & number.subgroup_first().eq(shared.load(first));
        y.store(i, agree.convert(Scalar::U32));
    };
    check(64, write, &[&numbers], 1, &[1; 64]);
}

#[test]
fn half_precision_arithmetic() {
    let (a, b) = ([1.5f32, -2.25, 0.1, 300.0], [2.0f32, 0.5, 0.3, 200.0]);
    let pack = |values: [f32; 4]| -> Vec<u32> {
        let halves: Vec<u32> = values.iter().map(|&x| u32::from(f16::from_f32(x).to_bits())).collect();
        halves.chunks(2).map(|pair| pair[0] | pair[1] << 16).collect()
    };
    let write = |k: &KernelBuilder| {
        let (a, b) = (k.buffer("a", Type::F16, Access::Read), k.buffer("b", Type::F16, Access::Read));
        let y = k.buffer("y", Type::F32, Access::Write);
        let i = k.local_index();
        y.store(i, (a.load(i) * b.load(i)).convert(Scalar::F32));
    };
    let round = |x: f32| f16::from_f32(x);
    let expected: Vec<f32> = a.iter().zip(b).map(|(&a, b)| (round(a) * round(b)).to_f32()).collect();
    check(4, write, &[&pack(a), &pack(b)], 1, &bits(&expected));
}

#[test]
fn halves_are_packed_and_unpacked_exactly() {
    let words: Vec<u32> = (0..1u32 << 15).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::U32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let i = k.global_index();
        let [low, high] = x.load(i).unpack_f16();
        // Each device has its own payload of NaN.
        let nan = low.is_nan() | high.is_nan();
        y.store(i, nan.select(k.u32(0x8000_0000), k.pack_f16(low, high)));
    };
    let is_nan = |half: u32| half & 0x7fff > 0x7c00;
    let expected: Vec<u32> = words
        .iter()
        .map(|&word| if is_nan(word & 0xffff) || is_nan(word >> 16) { 0x8000_0000 } else { word })
        .collect();
    check(64, write, &[&words], 512, &expected);
}

#[test]
fn rounding_to_half_is_to_nearest_even() {
    // Around every half: the value itself, the midpoint to the next and its neighbours on both sides.
    let values: Vec<f32> = (0..0x7c00u16)
        .step_by(7)
        .flat_map(|half| {
            let (x, next) = (f16::from_bits(half).to_f32(), f16::from_bits(half + 1).to_f32());
            let middle = if next.is_finite() { (x + next) / 2.0 } else { 65520.0 };
            [x, middle, f32::from_bits(middle.to_bits() + 1), -f32::from_bits(middle.to_bits().saturating_sub(1))]
        })
        .chain([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 65519.99])
        .collect();
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let i = k.global_index();
        k.when(i.lt(values.len() as u32), || y.store(i, x.load(i).to_half_bits()));
    };
    let expected: Vec<u32> = values.iter().map(|&x| f16::from_f32(x).to_bits().into()).collect();
    check(64, write, &[&bits(&values)], (values.len() as u32).div_ceil(64), &expected);
}

#[test]
fn packing_to_bf16_rounds_to_nearest_even_and_keeps_nan() {
    // Around many a `bf16`: the value itself, the midpoint to the next and its neighbours on both sides.
    let values: Vec<f32> = (0..0x7f80u32)
        .step_by(7)
        .flat_map(|upper| {
            let middle = upper << 16 | 0x8000;
            [upper << 16, middle, middle + 1, (middle - 1) | 1 << 31].map(f32::from_bits)
        })
        .chain([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE / 2.0])
        .chain([0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0xff80_8000, 0x7fc0_0000].map(f32::from_bits))
        .chain([-0.0])
        .collect();
    let words = values.len() as u32 / 2;
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let i = k.global_index();
        k.when(i.lt(words), || y.store(i, k.pack_bf16(x.load(i * 2), x.load(i * 2 + 1))));
    };
    let pairs = values.chunks_exact(2).map(|pair| pair.iter().rev().map(|&x| bf16::from_f32(x).to_bits()));
    let expected: Vec<u32> = pairs.map(|pair| pair.fold(0, |word, bits| word << 16 | u32::from(bits))).collect();
    check(64, write, &[&bits(&values)], words.div_ceil(64), &expected);
}

#[test]
fn conversions_saturate() {
    let values =
        [0.0, -0.0, 1.9, -1.9, 2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 4294967296.0, 1e20, -1e20]
            .into_iter()
            .chain([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5, 3.5]);
    let values: Vec<f32> = values.collect();
    let count = values.len() as u32;
    let write = |k: &KernelBuilder| {
        let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::U32, Access::Write));
        let i = k.local_index();
        y.store(i, x.load(i).convert(Scalar::I32).bitcast(Type::U32));
        y.store(i + count, x.load(i).convert(Scalar::U32));
    };
    let signed = values.iter().map(|&x| x as i32 as u32);
    let expected: Vec<u32> = signed.chain(values.iter().map(|&x| x as u32)).collect();
    check(count, write, &[&bits(&values)], 1, &expected);
}

#[test]
fn few_are_divided_exactly() {
    let divisors = [1, 2, 3, 5, 7, 10, 63, 127, 641, 1000, 4095, 65_537, FEW as u32 - 1, FEW as u32, (1 << 24) + 1];
    let beside = |divisor: u32| {
        let quotients = (0..FEW as u32 / divisor + 2).step_by((FEW as u32 / divisor / 500).max(1) as usize);
        let near = move |quotient: u32| [0, 1, 2].map(|x| quotient.saturating_mul(divisor).saturating_add(x));
        let numbers = quotients.flat_map(near).filter_map(|x| x.checked_sub(1)).chain([FEW as u32 - 1]);
        numbers.filter(|&x| x < FEW as u32).map(move |x| (x, divisor))
    };
    let mut pairs: Vec<(u32, u32)> = divisors.into_iter().flat_map(beside).collect();
    pairs.resize(pairs.len().next_multiple_of(64), (0, 1));
    let write = |k: &KernelBuilder| {
        let [x, by] = ["x", "by"].map(|name| k.buffer(name, Type::U32, Access::Read));
        let y = k.buffer("y", Type::U32, Access::Write);
        let i = k.global_index();
        let (quotient, rest) = x.load(i).divide_few(by.load(i));
        y.store(i * 2, quotient);
        y.store(i * 2 + 1, rest);
    };
    for &(x, by) in &pairs {
        // These devices divide exactly. Others may be wrong by 2.5 ulp, and this processor by half of one.
        let quotient = ((x as f32 + 0.5) / by as f32).to_bits();
        let near = [quotient - 3, quotient, quotient + 3].map(|bits| f32::from_bits(bits) as u32);
        assert_eq!(near, [x / by; 3], "{x} / {by}");
    }
    let (numbers, by): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
    let expected: Vec<u32> = pairs.iter().flat_map(|&(x, by)| [x / by, x % by]).collect();
    check(64, write, &[&numbers, &by], pairs.len() as u32 / 64, &expected);
}

#[test]
fn constants_that_wgsl_cannot_write() {
    let write = |k: &KernelBuilder| {
        let y = k.buffer("y", Type::F32, Access::Write);
        y.store(0, k.f32(f32::INFINITY));
        y.store(1, k.f32(f32::NEG_INFINITY));
        y.store(2, k.f32(f32::MIN));
        y.store(3, k.f32(f32::MIN_POSITIVE));
    };
    check(1, write, &[], 1, &bits(&[f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MIN_POSITIVE]));
}

#[test]
fn words_do_not_become_halves_through_wgsl() {
    let finish = |target| {
        let k = KernelBuilder::new("halves", target, 1);
        let [x, y] =
            [("x", Access::Read), ("y", Access::Write)].map(|(name, access)| k.buffer(name, Type::U32, access));
        let halves = x.load(0).bitcast(Type::vec2(Scalar::F16));
        y.store(0, (halves + halves).bitcast(Type::U32));
        k.finish()
    };
    assert!(finish(Target::VULKAN).is_ok() && finish(Target::LEVEL_ZERO).is_ok());
    let refused = finish(Target::WEBGPU).unwrap_err().to_string();
    assert!(refused.contains("bitcast from u32 to vec2<f16> through WGSL"), "{refused}");
}

#[test]
fn mistakes_are_errors() {
    let mistake = |write: &dyn Fn(&KernelBuilder)| {
        let k = KernelBuilder::new("wrong", Target::VULKAN, 1);
        write(&k);
        match k.finish() {
            Err(Error::Kernel { kernel, message }) => {
                assert_eq!(kernel, "wrong");
                message
            }
            other => panic!("no mistake was found: {other:?}"),
        }
    };
    assert!(mistake(&|k| _ = k.f32(1.0) + k.u32(1)).contains("`+` is not defined between f32 and u32"));
    assert!(mistake(&|k| _ = k.f32(1.0) & 1).contains("`&`"));
    assert!(mistake(&|k| _ = k.u32(1).select(k.u32(1), 2)).contains("select"));
    assert!(mistake(&|k| _ = k.f32(1.0).splat(4).lane(4)).contains("lane 4"));
    assert!(mistake(&|k| k.var(k.u32(0)).set(k.f32(0.0))).contains("f32 is stored where u32 is expected"));
    assert!(mistake(&|k| _ = k.buffer("b", Type::BOOL, Access::Read)).contains("buffer `b`"));
    assert!(mistake(&|k| _ = k.buffer("b", Type::U32, Access::Read).load(k.i32(0))).contains("index"));
    assert!(mistake(&|k| _ = k.buffer("b", Type::F32, Access::ReadWrite).atomic_max(0, 1)).contains("atomics"));
    assert!(mistake(&|k| _ = k.workgroup_array(Type::F32, 1).atomic_add(0, 1.0)).contains("atomics"));
    assert!(mistake(&|k| drop(k.when(k.u32(1), || ()))).contains("a condition is a truth value, not u32"));
    assert!(mistake(&|k| _ = k.parameter(Type::vec2(Scalar::F32))).contains("one word"));
    assert!(mistake(&|k| _ = k.vector(&[k.u32(1), k.f32(1.0)])).contains("one type"));
}

#[test]
fn absurd_numbers_of_lanes_make_no_instructions() {
    const LANES: u32 = 1 << 20;
    let wide = Type { scalar: Scalar::F32, lanes: LANES };
    // Each case is reported by its first mistake. What follows from its result makes few instructions, too.
    let writes: [fn(&KernelBuilder, Type); 10] = [
        |k, _| _ = k.f32(1.0).splat(LANES).lanes(),
        |k, _| _ = k.f32(1.0).splat(3).lanes(),
        |k, wide| _ = k.number(wide, 1).lanes(),
        |k, wide| _ = k.parameter(wide).lanes(),
        |k, wide| _ = k.parameter(Type { lanes: u32::MAX, ..wide }).lanes(),
        |k, wide| _ = k.f32(1.0).bitcast(wide).lanes(),
        |k, wide| _ = k.buffer("b", wide, Access::Read).load(0).lanes(),
        |k, wide| _ = k.workgroup_array(wide, 1).load(0).lanes(),
        |k, wide| _ = k.local_array(wide, 1).load(0).lanes(),
        |k, _| _ = k.vector(&[k.f32(1.0); 1 << 12]).lanes(),
    ];
    for (i, write) in writes.into_iter().enumerate() {
        let k = KernelBuilder::new("wide", Target::VULKAN, 1);
        write(&k, wide);
        let ids = k.state.borrow_mut().module.id();
        assert!(ids < 100, "case {i}: {ids} ids");
        assert!(matches!(k.finish(), Err(Error::Kernel { .. })), "case {i}");
    }
}

#[test]
fn no_compiler_is_asked_to_unroll_a_long_loop() {
    let asked = |turns| {
        let k = KernelBuilder::new("loop", Target::VULKAN, 1);
        let y = k.buffer("y", Type::U32, Access::Write);
        k.for_unrolled(turns, |i| y.store(i, 1));
        // The bit of the loop's control, in the instruction's last word.
        let words = k.finish().unwrap().spirv().unwrap().to_vec();
        let merge = (4 << 16) | Op::LoopMerge as u32;
        words.iter().position(|&word| word == merge).map(|at| words[at + 3] & 1)
    };
    assert_eq!([asked(16), asked(1024), asked(1025), asked(u32::MAX)], [Some(1), Some(1), Some(0), Some(0)]);
}

#[test]
fn only_subgroups_need_a_newer_version() {
    // The second word of SPIR-V: a byte for the major version, one for the minor.
    let version = |target, write: fn(&KernelBuilder)| {
        let k = KernelBuilder::new("versions", target, 64);
        write(&k);
        k.finish().unwrap().spirv().unwrap()[1]
    };
    let plain = |k: &KernelBuilder| k.buffer("y", Type::U32, Access::Write).store(k.local_index(), k.u32(1));
    let lanes = |k: &KernelBuilder| k.buffer("y", Type::U32, Access::Write).store(0, k.local_index().subgroup_sum());
    assert_eq!([version(Target::LEVEL_ZERO, plain), version(Target::LEVEL_ZERO, lanes)], [0x0001_0200, 0x0001_0300]);
    assert_eq!([version(Target::VULKAN, plain), version(Target::VULKAN, lanes)], [0x0001_0300; 2]);
}

#[test]
fn only_what_is_computed_as_written_may_not_be_contracted() {
    let asked = |target| {
        let k = KernelBuilder::new("as_written", target, 1);
        let y = k.buffer("y", Type::F32, Access::ReadWrite);
        let linear = || y.load(0) * y.load(1) + y.load(2) - y.load(3);
        y.store(4, linear() + k.as_written(linear) * 0.5);
        rspirv::dr::load_words(k.finish().unwrap().spirv().unwrap())
            .unwrap()
            .annotations
            .iter()
            .filter(|annotation| annotation.operands.contains(&Decoration::NoContraction.into()))
            .count()
    };
    assert_eq!([Target::VULKAN, Target::WEBGPU, Target::LEVEL_ZERO].map(asked), [3, 0, 0]);
}

#[test]
fn sums_are_only_hidden_from_compilers_that_cannot_be_told() {
    let additions = |target| {
        let k = KernelBuilder::new("two_sum", target, 1);
        let y = k.buffer("y", Type::F32, Access::ReadWrite);
        let [sum, lost] = y.load(0).two_sum(y.load(1));
        y.store(2, sum);
        y.store(3, lost);
        let before = y.load(4) + 1.0;
        y.store(4, k.as_written(|| (y.load(5) + 1.0).apart() + y.load(6).apart() + before.apart()));
        // Comparisons and quotients are not told of.
        k.as_written(|| {
            let computed = y.load(7) + 1.0;
            y.store(7, computed.eq(computed.opaque()).select(computed, 0.0));
            y.store(8, computed.divide(computed));
        });
        let module = rspirv::dr::load_words(k.finish().unwrap().spirv().unwrap());
        module.unwrap().all_inst_iter().filter(|instruction| instruction.class.opcode == Op::IAdd).count()
    };
    // What is loaded, or computed before drivers were told, has to be hidden everywhere. Then there are the four sums
    // of `two_sum`, and one more.
    assert_eq!([Target::VULKAN, Target::WEBGPU].map(additions), [4, 9]);
}
