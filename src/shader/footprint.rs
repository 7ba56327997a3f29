//! The memory that an app's kernel has of its own. Drivers are not asked for more than their limits.

use super::memory::MAX_LOCAL_MEMORY;
use super::spirv::instructions;
use crate::base::error::{Error, Result};
use rspirv::spirv::{Op, StorageClass};
use std::collections::{HashMap, HashSet};

/// How deep a type may nest (SPIR-V's universal limit for structures).
const MAX_TYPE_DEPTH: usize = 255;

/// Refuses types if the deepest of them nests too deep.
pub(super) fn check_type_depth(depth: usize) -> Result<(), String> {
    if depth <= MAX_TYPE_DEPTH {
        return Ok(());
    }
    Err(format!("types nest {depth} deep; {MAX_TYPE_DEPTH} are possible"))
}

/// The bytes that an entry point and the functions that it calls take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Footprint {
    /// Bytes of workgroup memory.
    pub workgroup: u64,
    /// Bytes of arrays and structures of one invocation. Numbers, vectors and matrices stay in registers.
    pub local: u64,
}

impl Footprint {
    /// Refuses more memory per invocation than kernels of the language may have. Returns the bytes of workgroup memory,
    /// whose limit depends on the device.
    pub fn check(self, kernel: &str) -> Result<u32> {
        if self.local > MAX_LOCAL_MEMORY.into() {
            let message = format!("private and local arrays of {} bytes; {MAX_LOCAL_MEMORY} are possible", self.local);
            return Err(Error::Kernel { kernel: kernel.into(), message });
        }
        Ok(u32::try_from(self.workgroup).unwrap_or(u32::MAX))
    }

    /// Adds a variable.
    pub fn add(&mut self, space: Space, bytes: u64) {
        let sum = match space {
            Space::Workgroup => &mut self.workgroup,
            Space::Local => &mut self.local,
        };
        *sum = sum.saturating_add(bytes);
    }
}

/// The memory of a variable that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Workgroup,
    Local,
}

impl Space {
    fn of(class: u32) -> Option<Space> {
        match StorageClass::from_u32(class)? {
            StorageClass::Workgroup => Some(Space::Workgroup),
            StorageClass::Private | StorageClass::Function => Some(Space::Local),
            _ => None,
        }
    }
}

/// A type, laid out as in storage buffers. Drivers may take that much memory (Vulkan,
/// VUID-RuntimeSpirv-Workgroup-06530).
#[derive(Debug, Clone, Copy, Default)]
struct Type {
    bytes: u64,
    alignment: u64,
    /// Whether it is an array or a structure.
    is_aggregate: bool,
    /// How deep types nest in it.
    depth: usize,
}

impl Type {
    fn number(bytes: u64) -> Type {
        Type { bytes, alignment: bytes.max(1), depth: 1, ..Type::default() }
    }

    /// Returns the type of `length` elements, each at a multiple of the alignment.
    fn times(self, length: u64, is_aggregate: bool) -> Type {
        let stride = self.bytes.checked_next_multiple_of(self.alignment.max(1)).unwrap_or(u64::MAX);
        Type { bytes: stride.saturating_mul(length), is_aggregate, depth: self.depth + 1, ..self }
    }

    /// Returns the type of members one behind the other.
    fn structure(members: impl Iterator<Item = Type>) -> Type {
        let mut all = Type { alignment: 1, is_aggregate: true, ..Type::default() };
        for member in members {
            let start = all.bytes.checked_next_multiple_of(member.alignment.max(1)).unwrap_or(u64::MAX);
            all.bytes = start.saturating_add(member.bytes);
            all.alignment = all.alignment.max(member.alignment);
            all.depth = all.depth.max(member.depth);
        }
        Type { depth: all.depth + 1, ..all }
    }
}

/// The types, constants and variables of a module, as far as they have been read.
#[derive(Default)]
struct Reader {
    types: HashMap<u32, Type>,
    /// What pointers point to, if the memory counts.
    pointees: HashMap<u32, Type>,
    /// Integer constants. Specialization constants have their default values, because nobody specializes them.
    constants: HashMap<u32, u64>,
    globals: HashMap<u32, (Space, u64)>,
    functions: HashMap<u32, Function>,
    /// The function that is being read.
    current: Option<u32>,
}

/// What a function uses.
#[derive(Default)]
struct Function {
    local: u64,
    globals: HashSet<u32>,
    calls: HashSet<u32>,
}

/// Reads what an entry point takes, given the id of its function. The error says why types are refused.
pub(crate) fn of_spirv(words: &[u32], entry_point: u32) -> Result<Footprint, String> {
    let mut reader = Reader::default();
    for (number, operands) in instructions(words) {
        reader.read(number, operands);
    }
    check_type_depth(reader.types.values().map(|ty| ty.depth).max().unwrap_or(0))?;
    Ok(reader.sum(entry_point))
}

impl Reader {
    fn read(&mut self, number: u32, operands: &[u32]) {
        let Some(op) = Op::from_u32(number) else { return };
        if let Some((id, ty)) = self.ty(op, operands) {
            self.types.insert(id, ty);
        }
        match (op, operands) {
            (Op::Constant | Op::SpecConstant, &[_, id, low, ..]) => {
                let high = operands.get(3).copied().unwrap_or(0);
                self.constants.insert(id, u64::from(low) | u64::from(high) << 32);
            }
            (Op::TypePointer, &[id, class, to, ..]) if Space::of(class).is_some() => {
                self.pointees.insert(id, self.types.get(&to).copied().unwrap_or_default());
            }
            (Op::Function, &[_, id, ..]) => self.current = Some(id),
            (Op::FunctionEnd, _) => self.current = None,
            (Op::Variable, &[ty, id, class, ..]) => return self.variable(ty, id, class),
            _ => {}
        }
        let Some(function) = self.current.map(|id| self.functions.entry(id).or_default()) else { return };
        if let (Op::FunctionCall, &[_, _, callee, ..]) = (op, operands) {
            function.calls.insert(callee);
        }
        // Any word may name a variable. If a number equals a variable's id by chance, the variable counts, too.
        function.globals.extend(operands.iter().filter(|id| self.globals.contains_key(id)));
    }

    fn variable(&mut self, ty: u32, id: u32, class: u32) {
        let (Some(space), Some(held)) = (Space::of(class), self.pointees.get(&ty).copied()) else { return };
        if space == Space::Local && !held.is_aggregate {
            return;
        }
        match self.current.map(|id| self.functions.entry(id).or_default()) {
            Some(function) => function.local = function.local.saturating_add(held.bytes),
            None => _ = self.globals.insert(id, (space, held.bytes)),
        }
    }

    /// Returns the type that an instruction declares, with its id.
    fn ty(&self, op: Op, operands: &[u32]) -> Option<(u32, Type)> {
        let known = |id: &u32| self.types.get(id).copied().unwrap_or_default();
        let (&id, operands) = operands.split_first()?;
        let ty = match (op, operands) {
            // In memory, a truth value is a word.
            (Op::TypeBool, _) => Type::number(4),
            (Op::TypeInt | Op::TypeFloat, [width, ..]) => Type::number(u64::from(width / 8)),
            (Op::TypeVector, [lane, lanes, ..]) => {
                let lane = known(lane);
                let alignment = lane.bytes.saturating_mul(u64::from(*lanes).next_power_of_two());
                Type { alignment, ..lane.times((*lanes).into(), false) }
            }
            (Op::TypeMatrix, [column, columns, ..]) => known(column).times((*columns).into(), false),
            // A length that is computed from other constants is not followed. The driver has to judge it.
            (Op::TypeArray, [element, length, ..]) => {
                known(element).times(self.constants.get(length).copied().unwrap_or(1), true)
            }
            (Op::TypeRuntimeArray, [element, ..]) => known(element).times(1, true),
            (Op::TypeStruct, members) => Type::structure(members.iter().map(known)),
            (Op::TypePointer, _) => Type::number(8),
            _ => return None,
        };
        Some((id, ty))
    }

    /// Adds up what a function uses, and what the functions that it calls use.
    fn sum(&self, entry_point: u32) -> Footprint {
        let (mut footprint, mut globals) = (Footprint::default(), HashSet::new());
        let (mut reached, mut open) = (HashSet::from([entry_point]), vec![entry_point]);
        while let Some(id) = open.pop() {
            let Some(function) = self.functions.get(&id) else { continue };
            footprint.add(Space::Local, function.local);
            globals.extend(&function.globals);
            open.extend(function.calls.iter().filter(|callee| reached.insert(**callee)));
        }
        for (space, bytes) in globals.into_iter().filter_map(|id| self.globals.get(id)) {
            footprint.add(*space, *bytes);
        }
        footprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::FunctionControl;

    fn variable(b: &mut Builder, class: StorageClass, ty: u32) -> u32 {
        let pointer = b.type_pointer(None, class, ty);
        b.variable(pointer, None, class, None)
    }

    fn function(b: &mut Builder, body: impl FnOnce(&mut Builder)) -> u32 {
        let void = b.type_void();
        let signature = b.type_function(void, []);
        let id = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        body(b);
        b.ret().unwrap();
        b.end_function().unwrap();
        id
    }

    #[test]
    fn what_an_entry_point_uses_is_added_up() {
        let mut b = Builder::new();
        let (void, u32, f32) = (b.type_void(), b.type_int(32, 0), b.type_float(32, None));
        let vector = b.type_vector(f32, 3);
        // Members at 0, 16 and 28.
        let structure = b.type_struct([u32, vector, u32]);
        let (three, ten) = (b.constant_bit32(u32, 3), b.spec_constant_bit32(u32, 10));
        let unknown = b.spec_constant_op(u32, Op::IAdd);
        let [structures, words, few, some] =
            [(structure, three), (u32, ten), (u32, three), (u32, unknown)].map(|(ty, length)| b.type_array(ty, length));
        let shared = variable(&mut b, StorageClass::Workgroup, structures);
        let elsewhere = variable(&mut b, StorageClass::Workgroup, words);
        let unjudged = variable(&mut b, StorageClass::Workgroup, some);
        let private = variable(&mut b, StorageClass::Private, words);
        let number = variable(&mut b, StorageClass::Private, u32);
        let load = |b: &mut Builder, ty, from| _ = b.load(ty, None, from, None, []).unwrap();
        let called = function(&mut b, |b| {
            variable(b, StorageClass::Function, few);
            load(b, structures, shared);
            load(b, u32, number);
        });
        let main = function(&mut b, |b| {
            b.function_call(void, None, called, []).unwrap();
            b.function_call(void, None, called, []).unwrap();
            load(b, words, private);
        });
        let other = function(&mut b, |b| {
            load(b, words, elsewhere);
            load(b, some, unjudged);
        });
        let module = b.module().assemble();
        let of = |function| of_spirv(&module, function).unwrap();
        assert_eq!(of(main), Footprint { workgroup: 3 * 32, local: 4 * 3 + 4 * 10 });
        assert_eq!(of(other), Footprint { workgroup: 4 * 10 + 4, local: 0 });
    }

    #[test]
    fn sizes_do_not_wrap() {
        let nested = |depth: usize, length: u32| {
            let mut b = Builder::new();
            let u32 = b.type_int(32, 0);
            let length = b.constant_bit32(u32, length);
            let ty = (1..depth).fold(u32, |ty, _| b.type_array(ty, length));
            let [shared, private] = [StorageClass::Workgroup, StorageClass::Private].map(|c| variable(&mut b, c, ty));
            let main = function(&mut b, |b| {
                for from in [shared, private] {
                    b.load(ty, None, from, None, []).unwrap();
                }
            });
            of_spirv(&b.module().assemble(), main)
        };
        let huge = nested(6, u32::MAX).unwrap();
        assert_eq!(huge, Footprint { workgroup: u64::MAX, local: u64::MAX });
        let message = "kernel `k`: private and local arrays of 18446744073709551615 bytes; 8192 are possible";
        assert_eq!(huge.check("k").unwrap_err().to_string(), message);
        assert_eq!(Footprint { local: 8192, ..huge }.check("k").unwrap(), u32::MAX);
        assert_eq!(nested(255, 1), Ok(Footprint { workgroup: 4, local: 4 }));
        assert_eq!(nested(256, 1), Err("types nest 256 deep; 255 are possible".into()));
    }
}
