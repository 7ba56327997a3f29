//! Sets the conditions of compilation (`build/conditions.rs`), and turns the tuning data in `shaders/tuning` into
//! constants (`build/tuning.rs`).

#[path = "build/conditions.rs"]
mod conditions;
#[path = "build/tuning.rs"]
mod tuning;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=shaders/tuning");
    println!("cargo::rerun-if-env-changed=MARQUETRY_MODEL_LOCKS");
    conditions::print();
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), String> {
    let root = std::env::var("CARGO_MANIFEST_DIR").map_err(|error| error.to_string())?;
    let output = std::env::var("OUT_DIR").map_err(|error| error.to_string())?;
    let entries = tuning::read(&Path::new(&root).join("shaders/tuning"))?;
    std::fs::write(Path::new(&output).join("tuning.rs"), tuning::to_rust(&entries)).map_err(|error| error.to_string())
}
