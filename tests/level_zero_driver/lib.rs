//! A Level Zero driver for tests, on top of OpenCL. See the README beside this file.
#![cfg(unix)]

mod binary;
mod bitcode;
mod cache;
mod command;
mod command_list;
mod context;
mod device;
mod event;
mod faults;
#[path = "../../src/backend/level_zero/ffi.rs"]
mod ffi;
mod guard;
mod handles;
mod kernel;
mod memory;
mod module;
mod opencl;
mod pointer;
mod progress;
mod queue;
mod report;
mod spirv;
mod tables;

/// The result of the driver's functions. The loader gets `SUCCESS` or the error.
type Outcome<T = ()> = Result<T, ffi::ResultCode>;
