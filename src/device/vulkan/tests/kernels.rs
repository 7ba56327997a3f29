//! Compiling and running kernels.

use super::*;

#[test]
fn a_kernel_computes_up_to_its_count() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let buffers = [upload(&backend, &a), upload(&backend, &[0.25; 1000]), upload(&backend, &[-1.0; 1000])];
    let ticket = backend.submit(&[dispatch(kernel, buffers, 777, false)], false).unwrap();
    backend.wait(ticket).unwrap();
    let expected: Vec<f32> = (0..1000).map(|i| if i < 777 { i as f32 + 0.25 } else { -1.0 }).collect();
    assert_eq!(download(&backend, buffers[2], 1000), expected);
}

#[test]
fn a_kernel_that_the_device_cannot_run_is_refused() {
    let backend = open();
    let limits = backend.info().limits.clone();
    let add = add_kernel();
    let too_much = [
        Module { workgroup: [limits.max_workgroup_invocations, 2, 1], ..add.clone() },
        Module { workgroup: [u32::MAX; 3], ..add.clone() },
        Module { workgroup_memory: limits.max_workgroup_memory + 4, ..add.clone() },
        Module { parameter_words: limits.max_parameter_words as usize + 1, ..add.clone() },
    ];
    for module in too_much {
        let error = backend.compile(&module, None).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    let all = Features { f16: true, subgroups: true, ..Default::default() };
    let compiled = backend.compile(&Module { requires: all, ..add }, None);
    let has_all = all.missing_from(&backend.info().features).is_none();
    assert_eq!(compiled.is_ok(), has_all, "{compiled:?}");
}

#[test]
fn a_kernel_is_entered_where_its_module_says() {
    let backend = open();
    let other = named_kernel("another name");
    let kernel = compile(&backend, &other);
    let [a, sum] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    backend.submit(&[dispatch(kernel, [a, a, sum], 4, false)], false).unwrap();
    assert_eq!(download(&backend, sum, 4), [2.0; 4]);
    let error = backend.compile(&Module { entry_point: "a\0b".into(), ..other }, None).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error}");
}

#[test]
fn a_kernel_given_as_wgsl_is_refused() {
    let module = Module { code: Code::Wgsl("fn main() {}".into()), ..add_kernel() };
    let error = open().compile(&module, None).unwrap_err();
    assert!(matches!(error, Error::Kernel { .. }), "{error}");
}

/// Of a device that cannot check bounds for a single kernel, no more is asked than that it runs what keeps within them.
#[test]
fn a_kernel_that_is_not_trusted_leaves_other_buffers_alone() {
    let backend = open();
    let kernel = compile(&backend, &Module { trusted: false, ..add_kernel() });
    let count = if backend.device.adapter.extensions.pipeline_robustness { 4096 } else { 64 };
    let buffers: Vec<_> = (0..8).map(|i| upload(&backend, &[i as f32; 64])).collect();
    backend.submit(&[dispatch(kernel, [buffers[3], buffers[3], buffers[4]], count, false)], false).unwrap();
    for (i, buffer) in buffers.iter().enumerate() {
        // The kernel reads 3 and adds it to itself. What it writes beyond the end may come to lie within the buffer.
        let found = download(&backend, *buffer, 64);
        let expected = if i == 4 { vec![0.0, 3.0, 6.0] } else { vec![i as f32] };
        assert!(found.iter().all(|value| expected.contains(value)), "{i}: {found:?}");
    }
}

#[test]
fn a_binary_spares_the_compiler_or_is_told_anew() {
    let backend = open();
    let module = add_kernel();
    let key = backend.binary_key(&module);
    assert_eq!(key, open().binary_key(&module));
    let first = backend.compile(&module, None).unwrap();
    assert!(key.is_some() || first.binary.is_none(), "a binary without a key");
    let binary = first.binary.unwrap_or_default();
    let mut of_another_driver = binary.clone();
    of_another_driver.iter_mut().skip(16).take(16).for_each(|byte| *byte ^= 1);
    let given = [&binary[..], &of_another_driver, &[], &[0xff; 100]];
    let [a, sum] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    for (i, binary) in given.into_iter().enumerate() {
        let compiled = open().compile(&module, Some(binary)).unwrap();
        assert!(!compiled.reused || compiled.binary.is_none(), "{i}");
        assert!(i == 0 || !compiled.reused, "{i}");
        let kernel = backend.compile(&module, Some(binary)).unwrap().kernel;
        backend.submit(&[dispatch(kernel, [a, a, sum], 4, false)], false).unwrap();
        assert_eq!(download(&backend, sum, 4), [2.0; 4], "{i}");
    }
}
