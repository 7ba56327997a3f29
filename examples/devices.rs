//! Lists the devices that marquetry reaches on this machine, with everything that their drivers report:
//! `cargo run --example devices`.
//!
//! Arguments narrow the list: `--gpu`, `--min-memory 8GiB`, `--min-compute-units 32`. `--json` prints one JSON object
//! per device.

use clap::Parser;
use marquetry::{BackendKind, Device, DeviceFilter, DeviceInfo};
use serde_json::json;

#[derive(Parser)]
#[command(about = "Lists the devices that marquetry reaches on this machine")]
struct Arguments {
    /// Only GPUs
    #[arg(long)]
    gpu: bool,
    /// Only devices with at least this much memory, such as 8GiB, 512MiB or a number of bytes
    #[arg(long, value_parser = bytes, default_value = "0")]
    min_memory: u64,
    /// Only devices with at least this many compute units
    #[arg(long, default_value_t = 0)]
    min_compute_units: u32,
    /// Print JSON, one object per device
    #[arg(long)]
    json: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, &1));
    let number: u64 =
        number.trim().parse().map_err(|_| "write a whole number, with GiB, MiB or KiB behind it or none")?;
    number.checked_mul(*unit).ok_or_else(|| "more than 64 bits can count".into())
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "not told".into(),
        bytes if bytes >= 1 << 30 => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes => format!("{:.1} KiB", bytes as f64 / 1024.0),
    }
}

fn or_unknown<T: ToString>(told: Option<T>) -> String {
    told.map_or("not told".into(), |value| value.to_string())
}

fn print(info: &DeviceInfo) {
    let limits = &info.limits;
    let [x, y, z] = limits.max_workgroup_size;
    let sizes: Vec<_> = limits.subgroup_sizes.iter().map(u32::to_string).collect();
    let memory = match (info.unified_memory, info.host_visible) {
        (true, _) => "shared with the host",
        (false, true) => "the host reaches memory of the kinds shared and host",
        (false, false) => "reached by the host through copies only",
    };
    println!("{info}");
    println!("  vendor            {}", info.vendor);
    println!("  compute units     {}", or_unknown(info.compute_units));
    if info.sub_devices > 0 {
        println!("  sub-devices       {}", info.sub_devices);
    }
    println!("  features          {}", info.features);
    println!("  subgroups of      {} lanes", if sizes.is_empty() { "not told".into() } else { sizes.join(", ") });
    println!("  workgroup         {} invocations, {x} x {y} x {z}", limits.max_workgroup_invocations);
    println!("  workgroup memory  {}", size(limits.max_workgroup_memory.into()));
    println!("  memory            {}, {memory}", size(info.memory));
    for region in &info.memory_regions {
        let bus = region.bus_width.map(|bits| format!(", bus of {bits} bits")).unwrap_or_default();
        let clock = region.clock_mhz.map(|mhz| format!(", {mhz} MHz")).unwrap_or_default();
        let place = if region.device_local { "device" } else { "host" };
        println!("    {:<15} {} ({place}{bus}{clock})", region.name, size(region.bytes));
    }
    println!("  largest buffer    {}, aligned to {} bytes", size(limits.max_buffer_bytes), limits.buffer_alignment);
    println!("  largest binding   {}", size(limits.max_binding_bytes));
    println!("  kernels take      {} buffers, {} parameter words", limits.max_bindings, limits.max_parameter_words);
}

fn print_json(info: &DeviceInfo) {
    let limits = &info.limits;
    let regions: Vec<_> = info
        .memory_regions
        .iter()
        .map(|region| {
            json!({
                "name": region.name, "bytes": region.bytes, "device_local": region.device_local,
                "bus_width": region.bus_width, "clock_mhz": region.clock_mhz,
            })
        })
        .collect();
    let snapshot = json!({
        "id": info.id(), "backend": info.backend.name(), "name": info.name, "vendor": info.vendor,
        "kind": info.kind.to_string(), "driver": info.driver, "memory": info.memory, "memory_regions": regions,
        "host_visible": info.host_visible, "unified_memory": info.unified_memory,
        "compute_units": info.compute_units, "sub_devices": info.sub_devices,
        "features": {
            "f16": info.features.f16, "subgroups": info.features.subgroups, "atomics": info.features.atomics,
            "timestamps": info.features.timestamps,
        },
        "limits": {
            "max_buffer_bytes": limits.max_buffer_bytes, "max_binding_bytes": limits.max_binding_bytes,
            "max_bindings": limits.max_bindings,
            "max_parameter_words": limits.max_parameter_words,
            "max_workgroup_invocations": limits.max_workgroup_invocations,
            "max_workgroup_memory": limits.max_workgroup_memory, "max_workgroup_size": limits.max_workgroup_size,
            "max_groups": limits.max_groups, "subgroup_sizes": limits.subgroup_sizes,
            "buffer_alignment": limits.buffer_alignment, "copy_alignment": limits.copy_alignment,
        },
    });
    println!("{snapshot}");
}

fn main() {
    let arguments = Arguments::parse();
    let filter = DeviceFilter::new().min_memory(arguments.min_memory).min_compute_units(arguments.min_compute_units);
    let filter = if arguments.gpu { filter.gpu() } else { filter };
    let devices = filter.list();
    devices.iter().for_each(|info| if arguments.json { print_json(info) } else { print(info) });
    if arguments.json {
        return;
    }
    // If a backend has no device, the reason is worth knowing.
    for backend in BackendKind::ALL {
        if let Err(error) = backend.name().parse::<Device>() {
            println!("{error}");
        }
    }
    if devices.is_empty() {
        println!("no device has what was asked for");
    }
}
