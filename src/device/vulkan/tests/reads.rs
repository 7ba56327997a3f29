//! Reads and their callbacks.

use super::*;

#[test]
fn a_read_is_answered_once_and_after_its_batch() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let x = upload(&backend, &[1.5; 4]);
    let next = Ticket(backend.completed().unwrap().0 + 1);
    let early = read(&backend, staging, 16, next);
    assert!(early.try_recv().is_err());
    assert_eq!(backend.submit(&[copy(x, staging, 16, false)], false).unwrap(), next);
    backend.wait(next).unwrap();
    let expected: Vec<u8> = bytemuck::cast_slice(&[1.5f32; 4]).to_vec();
    assert_eq!(early.recv().unwrap().unwrap(), expected);
    assert!(early.recv().is_err());
    let late = read(&backend, staging, 8, next);
    assert_eq!(late.try_recv().unwrap().unwrap(), expected[..8]);
}

#[test]
fn a_wait_returns_when_callbacks_have_returned_whichever_thread_runs_them() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let ticket = backend.submit(&[], false).unwrap();
                    let answer = read(&backend, staging, 16, ticket);
                    backend.wait(ticket).unwrap();
                    answer.try_recv().unwrap().unwrap();
                }
            });
        }
    });
}

#[test]
fn closing_a_device_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let x = upload(&backend, &[2.0; 4]);
    let ticket = backend.submit(&[copy(x, staging, 16, false)], false).unwrap();
    let due = read(&backend, staging, 16, ticket);
    let never = read(&backend, staging, 16, Ticket(1000));
    drop(backend);
    assert_eq!(due.recv().unwrap().unwrap(), bytemuck::cast_slice::<f32, u8>(&[2.0; 4]));
    assert!(never.recv().unwrap().is_err());
}

#[test]
fn a_lost_device_refuses_everything_and_answers_its_reads() {
    let backend = open();
    let staging = backend.allocate(16, MemoryUse::Readback).unwrap();
    let pending = read(&backend, staging, 16, Ticket(1));
    let lost = |error: Error| matches!(error, Error::DeviceLost { .. });
    assert!(lost(backend.device.error("vkQueueSubmit", ash::vk::Result::ERROR_DEVICE_LOST)));
    assert!(lost(backend.submit(&[], false).unwrap_err()));
    assert!(lost(pending.recv().unwrap().unwrap_err()));
    assert!(lost(backend.completed().unwrap_err()));
    assert!(lost(backend.wait(Ticket(0)).unwrap_err()));
    assert!(lost(backend.allocate(16, DEVICE).unwrap_err()));
    assert!(lost(backend.write(staging, &[]).unwrap_err()));
    assert!(lost(backend.compile(&add_kernel(), None).unwrap_err()));
    assert!(lost(read(&backend, staging, 16, Ticket(0)).recv().unwrap().unwrap_err()));
    backend.free(staging);
}
