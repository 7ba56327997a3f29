//! Dot products of packed bytes. If the [target](super::Target) has the instruction, the kernel requires
//! [`Features::integer_dot_products`](crate::Features::integer_dot_products). If not, the kernel multiplies byte by
//! byte.

use super::types::{Scalar, Type};
use super::value::Value;
use rspirv::dr::Operand;
use rspirv::spirv::{Capability, Op, PackedVectorFormat};

impl<'k> Value<'k> {
    /// The four signed bytes packed in a word, the lowest first.
    pub fn unpack_i8(self) -> [Value<'k>; 4] {
        // Each byte moves up to the sign and down again, filled with copies of the sign.
        [24, 16, 8, 0].map(|up| (self << up).bitcast(self.ty.with_scalar(Scalar::I32)) >> 24)
    }

    /// The four unsigned bytes packed in a word, the lowest first.
    pub fn unpack_u8(self) -> [Value<'k>; 4] {
        [0, 8, 16, 24].map(|down| (self >> down) & 0xff)
    }

    /// `sum` plus the dot product of the four signed bytes packed in `self` and the four in `rhs`, lane by lane: `u32`
    /// times `u32` plus `i32`. It is exact modulo 2^32: sums wrap.
    ///
    /// If the device has an [instruction](crate::Features::integer_dot_products) for it
    /// (`SPV_KHR_integer_dot_product`), this is the instruction. If not, and in WGSL, it is made of single products.
    ///
    /// ```
    /// use marquetry::shader::{Access, Type};
    /// use marquetry::{Argument, DType, Device, Kernel, Tensor};
    ///
    /// let device = Device::best()?;
    /// // Each invocation multiplies a row of four words with a vector.
    /// let kernel = Kernel::build("rows by vector", &device, 1, |k| {
    ///     let matrix = k.packed_buffer("matrix", DType::I8, Access::Read);
    ///     let vector = k.packed_buffer("vector", DType::I8, Access::Read);
    ///     let y = k.buffer("y", Type::I32, Access::Write);
    ///     let row = k.global_index();
    ///     let products = (0..4u32).fold(k.i32(0), |sum, word| {
    ///         matrix.load(row * 4 + word).dot_i8(vector.load(word), sum)
    ///     });
    ///     y.store(row, products);
    /// })?;
    /// let matrix = Tensor::full(-128i8, (2, 16), &device)?;
    /// let vector = Tensor::full(127i8, 16, &device)?;
    /// let [y] = kernel.launch(2, [matrix.into(), vector.into(), Argument::output(2)])?;
    /// assert_eq!(y.to_vec::<i32>()?, [16 * -128 * 127; 2]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn dot_i8(self, rhs: Value<'k>, sum: Value<'k>) -> Value<'k> {
        self.dot(rhs, sum, Scalar::I32, Op::SDot, Value::unpack_i8)
    }

    /// The same with unsigned bytes: `u32` times `u32` plus `u32`.
    ///
    /// ```
    /// # use marquetry::shader::{Access, KernelBuilder, Target, Type};
    /// let write = |target| {
    ///     let k = KernelBuilder::new("dot", target, 64);
    ///     let x = k.buffer("x", Type::U32, Access::ReadWrite);
    ///     let i = k.global_index();
    ///     x.store(i, x.load(i).dot_u8(k.u32(0x0101_0101), k.u32(0)));
    ///     k.finish()
    /// };
    /// assert!(!write(Target::VULKAN)?.requires.integer_dot_products);
    /// assert!(write(Target { integer_dot_products: true, ..Target::VULKAN })?.requires.integer_dot_products);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    pub fn dot_u8(self, rhs: Value<'k>, sum: Value<'k>) -> Value<'k> {
        self.dot(rhs, sum, Scalar::U32, Op::UDot, Value::unpack_u8)
    }

    fn dot(
        self,
        rhs: Value<'k>,
        sum: Value<'k>,
        scalar: Scalar,
        instruction: Op,
        unpack: impl Fn(Value<'k>) -> [Value<'k>; 4],
    ) -> Value<'k> {
        let k = self.kernel;
        [rhs, sum].into_iter().for_each(|value| k.check_own(value));
        let (words, sums) = (self.ty.with_scalar(Scalar::U32), self.ty.with_scalar(scalar));
        if (self.ty, rhs.ty, sum.ty) != (words, words, sums) {
            k.fail(format!("no dot product: {} times {} plus {}, not {words} and {sums}", self.ty, rhs.ty, sum.ty));
            return sum;
        }
        if !k.target().integer_dot_products {
            return unpack(self).into_iter().zip(unpack(rhs)).fold(sum, |sum, (a, b)| sum + a * b);
        }
        k.require(|features| features.integer_dot_products = true);
        k.capability(Capability::DotProduct);
        k.capability(Capability::DotProductInput4x8BitPacked);
        k.extension("SPV_KHR_integer_dot_product");
        let format = PackedVectorFormat::PackedVectorFormat4x8Bit;
        let ty = Type { scalar, lanes: 1 };
        let dot = |lane| {
            let words = [self, rhs].map(|words| words.lane(lane).operand());
            k.emit(instruction, ty, words.into_iter().chain([Operand::PackedVectorFormat(format)]))
        };
        let dots: Vec<_> = (0..self.ty.lanes).map(dot).collect();
        sum + if let [dot] = dots[..] { dot } else { k.vector(&dots) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Error;
    use crate::shader::{Access, KernelBuilder, Module, Target};
    use rspirv::binary::Disassemble;

    fn written(target: Target, write: impl FnOnce(&KernelBuilder)) -> Module {
        let k = KernelBuilder::new("dot", target, 1);
        write(&k);
        k.finish().unwrap()
    }

    fn text(module: &Module) -> String {
        rspirv::dr::load_words(module.spirv().unwrap()).unwrap().disassemble()
    }

    /// A dot product of each sort, of vectors of four words.
    fn products(k: &KernelBuilder) {
        let x = k.buffer("x", Type::vec4(Scalar::U32), Access::ReadWrite);
        let words = x.load(0);
        let signed = words.dot_i8(x.load(1), k.i32(-1).splat(4));
        x.store(2, words.dot_u8(x.load(1), signed.bitcast(Type::vec4(Scalar::U32))));
    }

    #[test]
    fn targets_with_the_instruction_have_it_in_the_kernel() {
        for target in [Target::VULKAN, Target::LEVEL_ZERO] {
            let module = written(Target { integer_dot_products: true, ..target }, products);
            let text = text(&module);
            assert!(module.requires.integer_dot_products);
            for (part, count) in [
                ("OpSDot ", 4),
                ("OpUDot ", 4),
                ("PackedVectorFormat4x8Bit", 8),
                ("OpCapability DotProduct\n", 1),
                ("OpCapability DotProductInput4x8BitPacked\n", 1),
                ("OpExtension \"SPV_KHR_integer_dot_product\"", 1),
                ("OpIMul", 0),
            ] {
                assert_eq!(text.matches(part).count(), count, "{part} in\n{text}");
            }
        }
    }

    #[test]
    fn others_multiply_one_by_one() {
        for target in [Target::VULKAN, Target::LEVEL_ZERO, Target::WEBGPU] {
            let module = written(target, products);
            let text = text(&module);
            assert!(!module.requires.integer_dot_products && !text.contains("Dot"), "{text}");
            assert_eq!(text.matches("OpIMul ").count(), 8, "{text}");
        }
    }

    #[test]
    fn a_kernel_without_dot_products_does_not_require_them() {
        let target = Target { integer_dot_products: true, ..Target::VULKAN };
        let module = written(target, |k| k.buffer("y", Type::U32, Access::Write).store(0, 1));
        assert!(!module.requires.integer_dot_products && !text(&module).contains("Dot"));
    }

    /// A kernel with a mistake, and a part of its message.
    type Mistake<'a> = (&'a dyn Fn(&KernelBuilder), &'a str);

    #[test]
    fn mistakes_with_dot_products() {
        let mistakes: [Mistake; 4] = [
            (&|k| _ = k.i32(1).dot_i8(k.i32(1), k.i32(1)), "i32 times i32 plus i32, not u32 and i32"),
            (&|k| _ = k.u32(1).dot_i8(k.u32(1), k.u32(1)), "u32 times u32 plus u32, not u32 and i32"),
            (&|k| _ = k.u32(1).dot_u8(k.u32(1), k.i32(1)), "u32 times u32 plus i32, not u32 and u32"),
            (&|k| _ = k.u32(1).splat(4).dot_u8(k.u32(1), k.u32(1)), "vec4<u32> times u32 plus u32"),
        ];
        for (write, expected) in mistakes {
            let k = KernelBuilder::new("wrong", Target::VULKAN, 1);
            write(&k);
            match k.finish() {
                Err(Error::Kernel { message, .. }) => assert!(message.contains(expected), "{message}"),
                other => panic!("no mistake was found: {other:?}"),
            }
        }
    }
}
