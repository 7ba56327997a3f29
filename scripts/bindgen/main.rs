//! Makes the JavaScript around a WebAssembly program, as the program `wasm-bindgen` does: `marquetry-bindgen IN.wasm OUT`.
//! With `--no-names` behind that, the program loses the names of its functions: a sixth of it, for messages only.

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (input, output) =
        arguments.next().zip(arguments.next()).context("usage: marquetry-bindgen IN.wasm OUT [--no-names]")?;
    wasm_bindgen_cli_support::Bindgen::new()
        .input_path(input)
        .web(true)?
        .omit_default_module_path(false)
        .typescript(false)
        .remove_name_section(arguments.next().is_some_and(|argument| argument == "--no-names"))
        .generate(output)
}
