//! Parameter blocks: the numbers that a kernel gets at its launch. A family declares its block once with
//! [`parameters!`]; the host fills it by name, and the kernel reads it by the same names.

use super::elements::{Grid, Strides};
use crate::base::dtype::DType;
use crate::base::layout::Layout;
use crate::base::shape::Dims;
use crate::base::word::Word;
use crate::shader::{KernelBuilder, Scalar, Type, Value};
use smallvec::SmallVec;

/// The words of a parameter block.
pub(crate) type Words = SmallVec<[u32; 32]>;

/// Sets the parameters of a block that differ from launch to launch, each to the next number.
pub(crate) type Numbers<'a, H> = &'a dyn Fn(&mut H, &mut dyn FnMut() -> u32);

/// The form of one or several parameters: the type that the host passes, and the type that a kernel gets. The
/// configuration of a family is the form of its block.
pub(crate) trait Form {
    /// The type that the host passes.
    type Host;
    /// The type that a kernel gets.
    type Device<'k>;

    /// Returns the number of words that the parameters take.
    fn parameter_words(&self) -> usize;

    /// Appends the words of what the host passes.
    fn push(&self, host: &Self::Host, words: &mut Words);

    /// Returns the words of what the host passes, with zeros for the numbers that `set` sets, and the places of these.
    fn words_and_places(&self, mut host: Self::Host, set: Numbers<'_, Self::Host>) -> (Words, SmallVec<[u8; 16]>) {
        let [mut words, mut numbered] = [Words::new(), Words::new()];
        set(&mut host, &mut || 0);
        self.push(&host, &mut words);
        let mut count = 0;
        set(&mut host, &mut || {
            count += 1;
            count
        });
        self.push(&host, &mut numbered);
        let place = |number| words.iter().zip(&numbered).position(|(&zero, &word)| zero == 0 && word == number);
        debug_assert!((1..=count).all(|number| place(number).is_some()), "each number becomes a word");
        let places = (1..=count).map(|number| place(number).unwrap_or_default() as u8).collect();
        (words, places)
    }

    /// Declares the parameters in a kernel.
    fn declare<'k>(&self, k: &'k KernelBuilder) -> Self::Device<'k>;
}

/// A number of elements, an index or an offset.
#[derive(Default)]
pub(crate) struct Size;

/// A distance between elements, which may be negative. In kernels, its sums and products wrap.
#[derive(Default)]
pub(crate) struct Stride;

/// An `i32`.
#[derive(Default)]
pub(crate) struct Signed;

/// A word of any meaning.
#[derive(Default)]
pub(crate) struct Bits;

/// An element of a dtype, widened to the type that kernels compute in.
pub(crate) struct Number(pub DType);

/// A float in the precision in which elements of a dtype are computed.
pub(crate) struct Float(pub DType);

/// The lengths of this many axes. They split a linear index into coordinates.
pub(crate) struct Lengths(pub usize);

/// An offset, and strides along this many axes.
pub(crate) struct View(pub usize);

/// What the host passes for a [`View`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Strided {
    /// The index of the first element.
    pub offset: usize,
    /// The distances between neighbours along each axis.
    pub strides: Dims<isize>,
}

/// The same parameters for each of several things, such as axes.
pub(crate) type Each<F> = SmallVec<[F; 4]>;

/// Returns `count` copies of a form.
pub(crate) fn times<F: Default>(count: usize) -> Each<F> {
    (0..count).map(|_| F::default()).collect()
}

/// Forms of one word: what the host hands over, the word that it becomes, and the type in kernels.
macro_rules! word_forms {
    ($($form:ident: |$host:ident: $ty:ty| $word:expr, $kernel:ident;)*) => {$(
        impl Form for $form {
            type Host = $ty;
            type Device<'k> = Value<'k>;

            fn parameter_words(&self) -> usize {
                1
            }

            fn push(&self, &$host: &$ty, words: &mut Words) {
                words.push($word);
            }

            fn declare<'k>(&self, k: &'k KernelBuilder) -> Value<'k> {
                k.parameter(Type::$kernel)
            }
        }
    )*};
}

word_forms! {
    Size: |size: usize| checked_word(size), U32;
    Stride: |stride: isize| stride as u32, U32;
    Signed: |number: i32| number.cast_unsigned(), I32;
    Bits: |bits: u32| bits, U32;
}

fn checked_word(size: usize) -> u32 {
    debug_assert!(u32::try_from(size).is_ok(), "{size} was checked to fit a word");
    size as u32
}

impl Form for Number {
    type Host = Word;
    type Device<'k> = Value<'k>;

    fn parameter_words(&self) -> usize {
        self.0.parts()
    }

    fn push(&self, host: &Word, words: &mut Words) {
        debug_assert_eq!(host.dtype.parts(), self.0.parts(), "a number of the dtype that the kernel reads");
        words.extend(host.words());
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Value<'k> {
        let ty = Type { scalar: self.0.compute_scalar(), lanes: 1 };
        let low = k.parameter(Type::U32);
        if self.0.parts() == 1 {
            return low.bitcast(ty);
        }
        let high = k.parameter(Type::U32);
        (low.convert(Scalar::I64) | (high.convert(Scalar::I64) << 32)).bitcast(ty)
    }
}

impl Form for Float {
    type Host = Word;
    type Device<'k> = Value<'k>;

    fn parameter_words(&self) -> usize {
        if self.0 == DType::F64 { 2 } else { 1 }
    }

    fn push(&self, host: &Word, words: &mut Words) {
        debug_assert_eq!(host.dtype, if self.0 == DType::F64 { DType::F64 } else { DType::F32 });
        words.extend(host.words());
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Value<'k> {
        if self.0 == DType::F64 { Number(self.0).declare(k) } else { k.parameter(Type::F32) }
    }
}

impl Form for Lengths {
    type Host = Dims;
    type Device<'k> = Grid<'k>;

    fn parameter_words(&self) -> usize {
        self.0
    }

    fn push(&self, host: &Dims, words: &mut Words) {
        debug_assert_eq!(host.len(), self.0, "a length per axis");
        words.extend(host.iter().map(|&length| length as u32));
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Grid<'k> {
        Grid::new((0..self.0).map(|_| k.parameter(Type::U32)).collect())
    }
}

impl Form for View {
    type Host = Strided;
    type Device<'k> = Strides<'k>;

    fn parameter_words(&self) -> usize {
        1 + self.0
    }

    fn push(&self, host: &Strided, words: &mut Words) {
        debug_assert_eq!(host.strides.len(), self.0, "a stride per axis");
        Size.push(&host.offset, words);
        words.extend(host.strides.iter().map(|&stride| stride as u32));
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Strides<'k> {
        let offset = k.parameter(Type::U32);
        Strides::new(offset, (0..self.0).map(|_| k.parameter(Type::U32)).collect())
    }
}

impl<F: Form> Form for &F {
    type Host = F::Host;
    type Device<'k> = F::Device<'k>;

    fn parameter_words(&self) -> usize {
        (*self).parameter_words()
    }

    fn push(&self, host: &F::Host, words: &mut Words) {
        (*self).push(host, words);
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> F::Device<'k> {
        (*self).declare(k)
    }
}

/// Parameters that only some kernels of a family have.
impl<F: Form> Form for Option<F> {
    type Host = Option<F::Host>;
    type Device<'k> = Option<F::Device<'k>>;

    fn parameter_words(&self) -> usize {
        self.as_ref().map_or(0, Form::parameter_words)
    }

    fn push(&self, host: &Option<F::Host>, words: &mut Words) {
        debug_assert_eq!(host.is_some(), self.is_some(), "it is there if the kernel has it");
        if let (Some(form), Some(host)) = (self, host) {
            form.push(host, words);
        }
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Option<F::Device<'k>> {
        self.as_ref().map(|form| form.declare(k))
    }
}

/// The same parameters for each of several things, such as axes.
impl<F: Form, const N: usize> Form for SmallVec<[F; N]> {
    type Host = SmallVec<[F::Host; N]>;
    type Device<'k> = Vec<F::Device<'k>>;

    fn parameter_words(&self) -> usize {
        self.iter().map(Form::parameter_words).sum()
    }

    fn push(&self, host: &SmallVec<[F::Host; N]>, words: &mut Words) {
        debug_assert_eq!(host.len(), self.len(), "one for each");
        self.iter().zip(host).for_each(|(form, host)| form.push(host, words));
    }

    fn declare<'k>(&self, k: &'k KernelBuilder) -> Vec<F::Device<'k>> {
        self.iter().map(|form| form.declare(k)).collect()
    }
}

impl From<&Layout> for Strided {
    fn from(layout: &Layout) -> Self {
        Strided { offset: layout.offset, strides: layout.strides.clone() }
    }
}

/// Sets what differs from launch to launch in the parameters of an expression: the places of its inputs, then its
/// numbers.
pub(super) fn set_numbers(inputs: &mut [Strided], scalars: &mut [Word], next: &mut dyn FnMut() -> u32) {
    inputs.iter_mut().for_each(|input| input.offset = next() as usize);
    scalars.iter_mut().for_each(|scalar| scalar.set_words(next));
}

/// Declares a parameter block. `config` names the configuration that the block's form depends on. The macro defines two
/// structs with these fields, one for the host and one for kernels, and implements [`Form`] for the configuration.
///
/// If the form of a field depends on the configuration, it follows after `=`, or after `=>` as a reference.
///
/// ```ignore
/// parameters! {
///     config: Gather;
///     host: Parameters;
///     device: Declared;
///     /// The number of elements of `y`.
///     count: Size,
///     /// The lengths of its axes.
///     lengths: Lengths = Lengths(config.rank),
/// }
/// ```
macro_rules! parameters {
    (
        $config:ident: $family:ty;
        host: $host:ident;
        device: $device:ident;
        $($(#[$doc:meta])* $field:ident: $form:ty $(= $value:expr)? $(=> $borrowed:expr)?,)*
    ) => {
        /// The parameters of a launch.
        #[derive(Clone)]
        pub(crate) struct $host {
            $($(#[$doc])* pub $field: <$form as $crate::kernels::parameters::Form>::Host,)*
        }

        /// The parameters in a kernel.
        #[derive(Clone)]
        pub(crate) struct $device<'k> {
            $(pub $field: <$form as $crate::kernels::parameters::Form>::Device<'k>,)*
        }

        impl $crate::kernels::parameters::Form for $family {
            type Host = $host;
            type Device<'k> = $device<'k>;

            fn parameter_words(&self) -> usize {
                #[allow(unused_variables, reason = "a block may have the same form always")]
                let $config = self;
                0 $(+ {
                    let form = $crate::kernels::parameters::parameters!(@form $form $(= $value)? $(=> $borrowed)?);
                    $crate::kernels::parameters::Form::parameter_words(&form)
                })*
            }

            fn push(&self, host: &$host, words: &mut $crate::kernels::parameters::Words) {
                #[allow(unused_variables, reason = "a block may have the same form always")]
                let $config = self;
                $({
                    let form = $crate::kernels::parameters::parameters!(@form $form $(= $value)? $(=> $borrowed)?);
                    $crate::kernels::parameters::Form::push(&form, &host.$field, words);
                })*
            }

            fn declare<'k>(&self, k: &'k $crate::shader::KernelBuilder) -> $device<'k> {
                #[allow(unused_variables, reason = "a block may have the same form always")]
                let $config = self;
                $(let $field = {
                    let form = $crate::kernels::parameters::parameters!(@form $form $(= $value)? $(=> $borrowed)?);
                    $crate::kernels::parameters::Form::declare(&form, k)
                };)*
                $device { $($field,)* }
            }
        }
    };
    (@form $form:ty = $value:expr) => {{
        let form: $form = $value;
        form
    }};
    (@form $form:ty => $borrowed:expr) => { $borrowed };
    (@form $form:ty) => { <$form>::default() };
}

pub(crate) use parameters;
