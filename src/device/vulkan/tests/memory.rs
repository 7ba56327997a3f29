//! Buffers of all kinds.

use super::*;

#[test]
fn bytes_come_back_as_they_went() {
    let backend = open();
    for count in [1, 5, 63, 1000, 65_537, (1 << 20) + 3] {
        let data: Vec<f32> = (0..count).map(|i| i as f32 * 0.5 - 7.0).collect();
        let buffer = upload(&backend, &data);
        assert_eq!(download(&backend, buffer, count), data, "{count}");
        backend.free(buffer);
    }
}

#[test]
fn a_buffer_beyond_the_limit_is_out_of_memory() {
    let backend = open();
    let limit = backend.info().limits.max_buffer_bytes;
    let held = backend.allocate(1 << 20, DEVICE).unwrap();
    let error = backend.allocate(limit + 16, DEVICE).unwrap_err();
    let Error::OutOfMemory { requested, in_use, limit: told } = error else { panic!("{error}") };
    assert_eq!((requested, told), (limit + 16, limit));
    assert!((1 << 20..1 << 21).contains(&in_use), "{in_use}");
    backend.free(held);
    let error = backend.allocate(limit + 16, DEVICE).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { in_use: 0, .. }), "{error}");
}

#[test]
fn the_host_and_kernels_share_a_buffer_in_place() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let numbers = |value: f32| vec![value; 1000];
    let bytes = |data: &[f32]| bytemuck::cast_slice(data).to_vec();
    for kind in [MemoryKind::Shared, MemoryKind::Host] {
        let [a, b, sum] = [(); 3].map(|()| backend.allocate(4000, MemoryUse::Kernels(kind)).unwrap());
        backend.write(a, &bytes(&numbers(1.5))).unwrap();
        backend.write(b, &bytes(&numbers(2.0))).unwrap();
        let ticket = backend.submit(&[dispatch(kernel, [a, b, sum], 1000, false)], false).unwrap();
        assert_eq!(wait_for(&backend, sum, 4000, ticket), bytes(&numbers(3.5)), "{kind}");
        // What the kernel wrote stays beside what the host writes.
        backend.write(sum, &bytes(&[-1.0; 3])).unwrap();
        let ticket = backend.submit(&[dispatch(kernel, [sum, b, a], 1000, false)], false).unwrap();
        let expected = [numbers(1.0)[..3].to_vec(), numbers(5.5)[3..].to_vec()].concat();
        assert_eq!(wait_for(&backend, a, 4000, ticket), bytes(&expected), "{kind}");
    }
}

#[test]
fn all_kinds_of_memory_can_be_copied_between() {
    let backend = open();
    let kinds = [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host];
    let data: Vec<u8> = (0..=255).collect();
    for (from, to) in kinds.into_iter().flat_map(|from| kinds.map(|to| (from, to))) {
        let [src, dst] = [from, to].map(|kind| backend.allocate(256, MemoryUse::Kernels(kind)).unwrap());
        let uploaded = upload_bytes(&backend, &data);
        let steps = [copy(uploaded, src, 256, false), copy(src, dst, 256, true)];
        backend.submit(&steps, false).unwrap();
        assert_eq!(download_bytes(&backend, dst, 256), data, "{from} to {to}");
    }
}

#[test]
fn the_budget_is_some_of_the_memory() {
    let backend = open();
    assert!((1..=backend.info().memory).contains(&backend.budget()), "{}", backend.budget());
}
