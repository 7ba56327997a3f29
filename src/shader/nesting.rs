//! Bounds how deep kernels nest, because naga reads them recursively and a stack has an end.
//!
//! Kernels of the language are made flat ([`name_deep`]). An app's kernel is refused beyond a bound, before naga sees
//! it ([`check_source`], [`check_control_flow`]).

use super::footprint::check_type_depth;
use super::spirv::instructions;
use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{Expression, Function};
use rspirv::spirv::Op;
use std::collections::{HashMap, HashSet};

/// How deep operators, brackets, blocks and `else if`s of WGSL may nest, all together.
const MAX_DEPTH: usize = 1000;

/// The most declarations of a module in WGSL. naga follows declarations that use each other one by one.
const MAX_DECLARATIONS: usize = 10_000;

/// How deep braces may nest in WGSL ("Limits"), and so the branches and loops of SPIR-V that become braces.
const MAX_BRACES: usize = 127;

/// How deep blocks, `else if`s and the cases of a `switch` may nest on software devices. Mesa's makes nested branches
/// of all of them. It leaves out code inside 80 branches, and crashes on 100.
const MAX_SOFTWARE_BLOCKS: usize = 64;

/// From this depth on, values get a name. naga's parser takes 200 levels, blocks included.
const MAX_UNNAMED: usize = 32;

/// Names values that are used once and nest deep, so that they are written as statements in a row.
pub(super) fn name_deep(module: &mut naga::Module, info: &ModuleInfo) {
    for (handle, function) in module.functions.iter_mut() {
        name_deep_values(function, &info[handle]);
    }
    for (index, entry_point) in module.entry_points.iter_mut().enumerate() {
        name_deep_values(&mut entry_point.function, info.get_entry_point(index));
    }
}

/// Operands come before the expressions that use them. A name holds from where its value is computed
/// (`Statement::Emit`). naga writes that in the order of the kernel.
fn name_deep_values(function: &mut Function, info: &FunctionInfo) {
    let mut depths: Vec<usize> = Vec::with_capacity(function.expressions.len());
    for (handle, expression) in function.expressions.iter() {
        let depth = depth(expression, &depths);
        let has_name = expression.bake_ref_count() <= info[handle].ref_count;
        // A place in memory is part of its load or store.
        let is_place = matches!(expression, Expression::Access { .. } | Expression::AccessIndex { .. });
        let named = depth >= MAX_UNNAMED && !has_name && !is_place;
        if named {
            function.named_expressions.insert(handle, "part".into());
        }
        depths.push(if named || has_name { 0 } else { depth });
    }
}

/// Returns how deep an expression nests over operands of these depths.
fn depth(expression: &Expression, depths: &[usize]) -> usize {
    let deepest = |operands: &[Option<naga::Handle<Expression>>]| {
        1 + operands.iter().flatten().filter_map(|operand| depths.get(operand.index())).max().unwrap_or(&0)
    };
    match *expression {
        Expression::Unary { expr, .. } | Expression::As { expr, .. } | Expression::ArrayLength(expr) => {
            deepest(&[Some(expr)])
        }
        Expression::Binary { left, right, .. } => deepest(&[Some(left), Some(right)]),
        Expression::Select { condition, accept, reject } => deepest(&[Some(condition), Some(accept), Some(reject)]),
        Expression::Math { arg, arg1, arg2, arg3, .. } => deepest(&[Some(arg), arg1, arg2, arg3]),
        Expression::Compose { ref components, .. } => {
            components.iter().map(|component| deepest(&[Some(*component)])).max().unwrap_or(1)
        }
        Expression::Access { base, index } => deepest(&[Some(base), Some(index)]),
        Expression::AccessIndex { base, .. } => deepest(&[Some(base)]),
        Expression::Splat { value, .. } => deepest(&[Some(value)]),
        Expression::Swizzle { vector, .. } => deepest(&[Some(vector)]),
        Expression::Load { pointer } => deepest(&[Some(pointer)]),
        Expression::Relational { argument, .. } => deepest(&[Some(argument)]),
        Expression::CallResult(_) | Expression::AtomicResult { .. } | Expression::SubgroupOperationResult { .. } => 0,
        ref expression if expression.needs_pre_emit() => 0,
        // These are rare and get a name in any case.
        _ => MAX_UNNAMED,
    }
}

/// Refuses types that nest too deep. A type comes after the types that it uses.
pub(super) fn check_types(types: &naga::UniqueArena<naga::Type>) -> Result<(), String> {
    let mut depths: Vec<usize> = Vec::with_capacity(types.len());
    for (_, ty) in types.iter() {
        let of = |ty: naga::Handle<naga::Type>| depths.get(ty.index()).copied().unwrap_or(0);
        let inner = match &ty.inner {
            naga::TypeInner::Array { base, .. } | naga::TypeInner::BindingArray { base, .. } => of(*base),
            naga::TypeInner::Struct { members, .. } => members.iter().map(|member| of(member.ty)).max().unwrap_or(0),
            _ => 0,
        };
        depths.push(1 + inner);
    }
    check_type_depth(depths.into_iter().max().unwrap_or(0))
}

/// Refuses SPIR-V whose branches and loops nest too deep for WGSL, or for a software device. Follows the blocks in
/// their order, as naga does. Each block comes after the one that leads to it.
pub(crate) fn check_control_flow(words: &[u32], is_software: bool) -> Result<(), String> {
    let (mut depths, mut merges) = (HashMap::new(), HashSet::new());
    let (mut here, mut deepest) = (0, 0);
    // If several blocks lead to a block, the deepest of them decides how deep it is.
    let raise = |depths: &mut HashMap<u32, usize>, block: u32, depth: usize| {
        let known = depths.entry(block).or_insert(0);
        *known = depth.max(*known);
    };
    for (number, operands) in instructions(words) {
        let (targets, depth): (&[u32], usize) = match (Op::from_u32(number), operands) {
            (Some(Op::Label), [label, ..]) => {
                here = depths.get(label).copied().unwrap_or(0);
                deepest = deepest.max(here);
                continue;
            }
            (Some(Op::SelectionMerge), [merge, ..]) => {
                raise(&mut depths, *merge, here);
                merges.insert(*merge);
                continue;
            }
            (Some(Op::LoopMerge), [merge, next, ..]) => {
                raise(&mut depths, *merge, here);
                here += 1;
                raise(&mut depths, *next, here);
                merges.extend([*merge, *next]);
                continue;
            }
            (Some(Op::Branch), targets) => (targets, here),
            (Some(Op::BranchConditional), [_, yes_and_no @ ..]) => (yes_and_no.get(..2).unwrap_or_default(), here + 1),
            // The numbers between the labels are taken for labels, too.
            (Some(Op::Switch), [_, targets @ ..]) => (targets, here + 1),
            _ => continue,
        };
        for target in targets.iter().filter(|target| !merges.contains(*target)) {
            raise(&mut depths, *target, depth);
        }
    }
    let most = if is_software { MAX_SOFTWARE_BLOCKS } else { MAX_BRACES };
    if deepest <= most {
        return Ok(());
    }
    Err(format!("branches and loops nest {deepest} deep; the device takes {most}, where a loop counts twice"))
}

/// What is open at a place in the text: a bracket, or the statement outside all brackets.
#[derive(Default)]
struct Open {
    /// The operators since the last comma.
    operators: usize,
    /// The depth of the deepest bracket between them.
    inside: usize,
    /// The deepest part between commas so far.
    deepest: usize,
    /// The `<` that no `>` has followed: a comma may belong to a type.
    angles: usize,
}

impl Open {
    /// Returns how deep it may nest: each operator may have everything before it as its operand.
    fn depth(&self) -> usize {
        self.deepest.max(self.operators + self.inside)
    }
}

/// Refuses WGSL that nests too deep, or has too many declarations. Returns how deep it nests at most, whatever its
/// operators bind to.
pub(super) fn check_source(wgsl: &str, is_software: bool) -> Result<usize, String> {
    let (mut line, mut deepest, mut declarations) = (1, 0, 0);
    // For each open block, the `else if`s that led there. `outside` is their sum plus the number of blocks.
    let (mut blocks, mut outside) = (vec![0], 1);
    let mut brackets = vec![Open::default()];
    let mut tokens = Tokens { rest: wgsl };
    let mut before = "";
    while let Some((gap, token)) = tokens.next(brackets.last().is_some_and(|open| open.angles > 0)) {
        line += gap.matches('\n').count();
        if before == "}" && !matches!(token, "else" | "case" | "default") {
            outside -= blocks.last_mut().map_or(0, std::mem::take);
        }
        let is_outermost = brackets.len() == 1;
        let Some(open) = brackets.last_mut() else { break };
        match token {
            // Each `else if` is inside the one before. On software devices, so is each case.
            _ if token == "if" && before == "else" || token == "case" && is_software => {
                outside += 1;
                if let Some(count) = blocks.last_mut() {
                    *count += 1;
                }
            }
            "(" | "[" => {
                // The indexed value is an operand.
                open.operators += usize::from(token == "[");
                brackets.push(Open::default());
            }
            ")" | "]" if !is_outermost => {
                let inside = 1 + open.depth();
                brackets.pop();
                if let Some(open) = brackets.last_mut() {
                    open.inside = open.inside.max(inside);
                }
            }
            "," if open.angles == 0 => *open = Open { deepest: open.depth(), ..Open::default() },
            ";" => *open = Open::default(),
            "{" | "}" => brackets = vec![Open::default()],
            "<" | ">" => {
                open.angles = if token == "<" { open.angles + 1 } else { open.angles.saturating_sub(1) };
                open.operators += 1;
            }
            // By mistake, a number may have members.
            _ if is_number(token) => open.operators += token.matches('.').count().saturating_sub(1),
            _ if token.starts_with(OPERATORS) => open.operators += 1,
            _ => {}
        }
        match token {
            "{" => {
                blocks.push(0);
                outside += 1;
            }
            "}" if blocks.len() > 1 => outside -= 1 + blocks.pop().unwrap_or(0),
            _ => {}
        }
        declarations += usize::from(matches!(token, ";" | "}") && blocks.len() == 1);
        // The module and the function are two levels.
        if is_software && outside > MAX_SOFTWARE_BLOCKS + 2 {
            return Err(format!(
                "line {line}: more than {MAX_SOFTWARE_BLOCKS} blocks, `else if`s or cases nest; the device takes no more: \
                 make shorter chains of them"
            ));
        }
        let open = brackets.last().map_or(0, Open::depth);
        deepest = deepest.max(outside + brackets.len() + open);
        if deepest > MAX_DEPTH {
            return Err(format!(
                "line {line}: operators, brackets and blocks nest deeper than {MAX_DEPTH}; name parts of it with `let`, \
                 or move them to functions"
            ));
        }
        if declarations > MAX_DECLARATIONS {
            return Err(format!("line {line}: there are more than {MAX_DECLARATIONS} declarations"));
        }
        before = token;
    }
    Ok(deepest)
}

/// The first characters of operators, and of points before members.
const OPERATORS: [char; 14] = ['+', '-', '*', '/', '%', '&', '|', '^', '~', '!', '<', '>', '=', '.'];

/// The operators of two characters that count once.
const PAIRS: [&str; 19] =
    ["&&", "||", "==", "!=", "<=", ">=", "<<", ">>", "->", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="];

/// The text's tokens, without comments and blanks.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// Returns the text left out before the next token, and the token. `in_type` says that `>` may end a type's
    /// arguments: then it is a token of its own.
    fn next(&mut self, in_type: bool) -> Option<(&'a str, &'a str)> {
        let start = self.rest;
        loop {
            let trimmed = self.rest.trim_start_matches(is_blank);
            self.rest = if trimmed.starts_with("//") {
                trimmed.find(is_line_end).map_or("", |end| &trimmed[end..])
            } else if let Some(comment) = trimmed.strip_prefix("/*") {
                behind_comment(comment)
            } else {
                self.rest = trimmed;
                break;
            };
        }
        let gap = &start[..start.len() - self.rest.len()];
        let first = self.rest.chars().next()?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii() && !is_blank(c);
        let length = if is_number(self.rest) {
            self.rest.find(|c: char| !is_word(c) && c != '.').unwrap_or(self.rest.len())
        } else if is_word(first) {
            self.rest.find(|c: char| !is_word(c)).unwrap_or(self.rest.len())
        } else {
            let pair = self.rest.get(..2).is_some_and(|pair| PAIRS.contains(&pair));
            if pair && !(first == '>' && in_type) { 2 } else { first.len_utf8() }
        };
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some((gap, token))
    }
}

/// Whether a text starts with a number.
fn is_number(text: &str) -> bool {
    text.strip_prefix('.').unwrap_or(text).starts_with(|c: char| c.is_ascii_digit())
}

/// Whether a character may stand between tokens. WGSL's marks of the direction of writing may, too.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200e}' | '\u{200f}')
}

/// Whether a character ends a line, and a comment in it.
fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns what follows a comment, which may hold others. The text starts behind its `/*`.
fn behind_comment(text: &str) -> &str {
    let mut characters = text.chars();
    let (mut before, mut open) = (characters.next(), 1);
    for c in characters.by_ref() {
        match (before, c) {
            (Some('*'), '/') => (before, open) = (None, open - 1),
            (Some('/'), '*') => (before, open) = (None, open + 1),
            _ => before = Some(c),
        }
        if open == 0 {
            break;
        }
    }
    characters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::dtype::DType;
    use crate::kernels::KernelConfig;
    use crate::kernels::elementwise::{Elementwise, InputLayout};
    use crate::kernels::expr::{BinaryOp, Expr, TermId, UnaryOp};
    use crate::shader::{Target, wgsl};
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::{FunctionControl, LoopControl, SelectionControl};

    /// Returns how deep brackets nest.
    fn brackets(text: &str) -> usize {
        let mut open = 0usize;
        let depths = text.chars().map(|c| {
            match c {
                '(' | '[' | '{' => open += 1,
                ')' | ']' | '}' => open -= 1,
                _ => {}
            }
            open
        });
        depths.max().unwrap_or(0)
    }

    /// Asserts that WGSL is far from the limit of naga's parser, 200, and from the one of [`check_source`].
    fn check_flat(name: &str, text: &str) {
        let (brackets, depth) = (brackets(text), check_source(text, true).unwrap());
        assert!(brackets <= 2 * MAX_UNNAMED && depth <= MAX_DEPTH / 4, "{name}: {brackets}, {depth}");
    }

    #[test]
    fn kernels_of_the_crate_are_flat() {
        for kernel in crate::engine::catalogue::catalogue(Target::WEBGPU).unwrap() {
            check_flat(&kernel.name, &wgsl::translate(&kernel).unwrap());
        }
    }

    /// Fuses twice as many operations as fusion puts into a kernel, each over the last one.
    #[test]
    fn fused_expressions_are_flat() {
        const OPERATIONS: usize = 48;
        let step = |kind: usize, expr: &mut Expr, x: TermId, other: TermId| match kind {
            0 => expr.unary(UnaryOp::Neg, x),
            1 => expr.unary(UnaryOp::Gelu, x),
            2 => expr.unary(UnaryOp::Tan, x),
            3 => expr.binary(BinaryOp::Add, x, other),
            4 => expr.binary(BinaryOp::Pow, other, x),
            _ => expr.select(other, x, other),
        };
        for dtype in [DType::F32, DType::BF16] {
            for kind in 0..6 {
                let mut expr = Expr::default();
                let input = expr.input(0, dtype);
                (0..OPERATIONS).fold(input, |x, _| step(kind, &mut expr, x, input));
                assert_eq!(expr.operations(), OPERATIONS);
                let inputs = [(dtype, InputLayout::Strided)].into_iter().collect();
                let kept = Default::default();
                let config = Elementwise {
                    expr,
                    kept,
                    inputs,
                    rank: 3,
                    scalars: Default::default(),
                    invocations: 128,
                    quads: 1,
                };
                let module = KernelConfig::from(config).generate(Target::WEBGPU).unwrap();
                check_flat(&format!("{dtype} {kind}"), &wgsl::translate(&module).unwrap());
            }
        }
    }

    /// A kernel around statements.
    fn kernel(declarations: &str, body: &str) -> String {
        format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             {declarations}
             @compute @workgroup_size(1) fn run() {{ {body} }}"
        )
    }

    /// Returns a text of each sort that nests `n` deep.
    fn deep(n: usize) -> Vec<(&'static str, String)> {
        let around = |before: &str, inner: &str, behind: &str| before.repeat(n) + inner + &behind.repeat(n);
        let value = |value: String| kernel("", &format!("y[0] = {value};"));
        vec![
            ("parentheses", value(around("(", "y[1]", ")"))),
            ("calls", value(around("min(1u, ", "y[1]", ")"))),
            ("indexes", value(around("y[", "0", "]"))),
            ("sums", value(around("", "y[1]", " + 1u"))),
            ("sums of constants", value(around("", "1u", " + 0u"))),
            ("signs", value(around("~", "y[1]", ""))),
            ("members", value(around("", "vec2<u32>(1u, 2u)", ".yx") + ".x")),
            ("members of a number", value(around("", "1.0f", ".x"))),
            ("exponents", value(around("", "0xe", "-0xe"))),
            ("types in a sum", value(around("", "0u", " + array<u32, 2>(1u, 2u)[1]"))),
            ("comparisons", value(around("", "1u", " + u32(1 < y[2])"))),
            ("types", kernel(&format!("var<private> z: {};", around("array<", "u32", ", 1>")), "")),
            ("blocks", kernel("", &around("{", "y[0] = 1u;", "}"))),
            ("branches", kernel("", &around("if y[1] > 2u {", "y[0] = 1u;", "}"))),
            ("loops", kernel("", &around("loop { if y[1] > 2u { break; }", "y[0] = 1u;", "}"))),
            ("switches", kernel("", &around("switch y[1] { default: {", "y[0] = 1u;", "} }"))),
            ("elses", kernel("", &around("", "if y[1] == 1u { }", " else /* */ if y[1] == 2u { }"))),
            ("elses apart", kernel("", &around("", "if y[1] == 1u { }", " else\u{200e}if y[1] == 2u { }"))),
            ("behind a comment", kernel("", &format!("// \r y[0] = {};", around("", "y[1]", " + 1u")))),
            ("declarations", kernel(&around("const a = 1u;\n", "", ""), "")),
        ]
    }

    #[test]
    fn deep_source_is_refused() {
        for (sort, text) in deep(20_000) {
            let message = check_source(&text, false).unwrap_err();
            let expected = match sort {
                "declarations" => "line 10001: there are more than 10000 declarations".to_string(),
                _ => format!("operators, brackets and blocks nest deeper than {MAX_DEPTH}; name parts of it"),
            };
            assert!(message.contains(&expected), "{sort}: {message}");
        }
        let depth = MAX_SOFTWARE_BLOCKS + 1;
        for (sort, text) in deep(depth) {
            let found = check_source(&text, false).unwrap_or_else(|message| panic!("{sort}: {message}"));
            assert!(sort == "declarations" || found >= depth, "{sort}: {found}");
            let is_blocks = ["blocks", "branches", "loops", "switches", "elses", "elses apart"].contains(&sort);
            assert_eq!(check_source(&text, true).is_err(), is_blocks, "{sort}");
        }
        let switch = |cases: usize| {
            let cases: String = (0..cases).map(|i| format!("case {i}: {{ y[1] = 2u; }}")).collect();
            kernel("", &format!("switch y[1] {{ {cases} default: {{ y[0] = 1u; }} }}"))
        };
        assert!(check_source(&switch(60), true).is_ok() && check_source(&switch(65), true).is_err());
        assert!(check_source(&switch(2000), false).is_ok());
    }

    #[test]
    fn long_source_that_is_flat_is_taken() {
        let numbers = "-1.5e-3, ".repeat(1200);
        let calls = "y[0] = max(y[1] * 2u, min(y[2] + 3u, y[3]));".repeat(1200);
        let branches = "if y[0] <= 1u && y[1] >= 2u { y[2] = 1u; } else if y[3] == 2u { } else { }".repeat(1200);
        let text = format!(
            "// {dashes}
             /* {dashes} /* ((((( */ {dashes} */
             const table = array<f32, 1200>({numbers});
             @group(0) @binding(0) var<storage, read_write> y: array<u32>;
             fn f(a: bool, b: vec2<f32>) {{ for (var i = 0u; i < 3u; i++) {{ y[i] >>= 1u; }} }}
             @compute @workgroup_size(1) fn run() {{ f(1 < 2, vec2<f32>(table[0], table[1])); {calls} {branches} }}",
            dashes = "-=".repeat(2000),
        );
        naga::front::wgsl::parse_str(&text).unwrap();
        let depth = check_source(&text, true).unwrap();
        assert!(depth < 20, "{depth}");
    }

    /// Returns SPIR-V with selections or loops that nest, or stand one behind the other.
    fn flow(count: usize, is_loop: bool, is_nested: bool) -> Vec<u32> {
        let mut b = Builder::new();
        let (void, bool) = (b.type_void(), b.type_bool());
        let signature = b.type_function(void, []);
        let yes = b.constant_true(bool);
        b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        let mut merges = Vec::new();
        for _ in 0..count {
            let (inside, next, merge) = (b.id(), b.id(), b.id());
            if is_loop {
                let header = b.id();
                b.branch(header).unwrap();
                b.begin_block(Some(header)).unwrap();
                b.loop_merge(merge, next, LoopControl::NONE, []).unwrap();
                b.branch(inside).unwrap();
                merges.push((merge, Some((next, header))));
            } else {
                b.selection_merge(merge, SelectionControl::NONE).unwrap();
                b.branch_conditional(yes, inside, merge, []).unwrap();
                merges.push((merge, None));
            }
            b.begin_block(Some(inside)).unwrap();
            if !is_nested {
                close(&mut b, &mut merges);
            }
        }
        while !merges.is_empty() {
            close(&mut b, &mut merges);
        }
        b.ret().unwrap();
        b.end_function().unwrap();
        b.module().assemble()
    }

    fn close(b: &mut Builder, merges: &mut Vec<(u32, Option<(u32, u32)>)>) {
        let (merge, next) = merges.pop().unwrap();
        if let Some((next, header)) = next {
            b.branch(merge).unwrap();
            b.begin_block(Some(next)).unwrap();
            b.branch(header).unwrap();
        } else {
            b.branch(merge).unwrap();
        }
        b.begin_block(Some(merge)).unwrap();
    }

    #[test]
    fn deep_control_flow_is_refused() {
        for is_loop in [false, true] {
            for (is_software, most) in [(false, MAX_BRACES), (true, MAX_SOFTWARE_BLOCKS)] {
                assert_eq!(check_control_flow(&flow(most, is_loop, true), is_software), Ok(()));
                let refusal = check_control_flow(&flow(most + 1, is_loop, true), is_software).unwrap_err();
                let (deep, takes) = (format!("nest {} deep", most + 1), format!("the device takes {most}"));
                assert_eq!(refusal, format!("branches and loops {deep}; {takes}, where a loop counts twice"));
                assert_eq!(check_control_flow(&flow(2000, is_loop, false), is_software), Ok(()));
            }
        }
    }

    #[test]
    fn deep_types_are_refused() {
        let text = |depth: usize| {
            let aliases: String = (1..depth).map(|i| format!("alias T{i} = array<T{}, 1>;", i - 1)).collect();
            format!("alias T0 = u32; {aliases} var<private> x: T{};", depth - 1)
        };
        let types = |depth| naga::front::wgsl::parse_str(&text(depth)).unwrap().types;
        assert_eq!(check_types(&types(255)), Ok(()));
        assert_eq!(check_types(&types(256)), Err("types nest 256 deep; 255 are possible".into()));
    }

    /// Names are written where the values are computed, before the memory that they come from changes.
    #[test]
    fn named_values_keep_their_place() {
        let chain = "u32(y[0] + 1u)".to_string() + &" + y[2]".repeat(80);
        let text = kernel("", &format!("y[0] = 5u; let v = {chain}; y[0] = 6u; if v > 7u {{ y[1] = {chain}; }}"));
        let mut ir = naga::front::wgsl::parse_str(&text).unwrap();
        ir.entry_points[0].function.named_expressions.clear();
        let validate =
            |ir: &naga::Module| Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(ir).unwrap();
        let info = validate(&ir);
        name_deep(&mut ir, &info);
        let named = ir.entry_points[0].function.named_expressions.len();
        assert_eq!(named, 2 * (80 / MAX_UNNAMED));
        let written = naga::back::wgsl::write_string(&ir, &info, naga::back::wgsl::WriterFlags::empty()).unwrap();
        assert!(brackets(&written) <= MAX_UNNAMED + 4, "{written}");
        validate(&naga::front::wgsl::parse_str(&written).unwrap());
    }
}
