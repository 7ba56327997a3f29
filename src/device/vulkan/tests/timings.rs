//! When steps ran.

use super::*;
use crate::profile::now;

/// By how much a device's clock and the host's may be apart once compared: reading both takes a few microseconds, more
/// on a machine that is busy.
const SLACK: u64 = 200_000;

#[test]
fn each_step_of_a_timed_batch_has_its_time() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 1 << 18;
    let [a, b, c] = [0.0, 1.0, 2.0].map(|value| upload(&backend, &vec![value; n]));
    // Some that would overlap if they were not timed, and one that waits.
    let steps = [
        dispatch(kernel, [a, a, b], n as u32, false),
        dispatch(kernel, [a, a, c], n as u32, false),
        copy(b, c, 4 * n as u64, true),
        dispatch(kernel, [a, a, b], 1, true),
    ];
    for round in 0..3 {
        let before = now();
        let ticket = backend.submit(&steps, true).unwrap();
        backend.wait(ticket).unwrap();
        let after = now();
        let timings = backend.timings(ticket).unwrap();
        assert_eq!(timings.len(), steps.len());
        assert!(timings.iter().all(|step| step.start <= step.end), "{timings:?}");
        assert!(timings.windows(2).all(|pair| pair[0].end <= pair[1].start), "{timings:?}");
        assert!(before <= timings[0].start + SLACK && timings[3].end <= after + SLACK, "{before} {timings:?} {after}");
        // No device moves these three megabytes in less.
        assert!(timings[..3].iter().all(|step| step.end - step.start > 100), "{timings:?}");
        assert!(backend.timings(ticket).is_err(), "round {round} was told twice");
    }
    assert_eq!(download(&backend, b, n), vec![0.0; n]);
}

#[test]
fn timings_are_kept_for_each_batch_until_they_are_asked_for() {
    let backend = open();
    let [a, b] = [[1.0; 4], [0.0; 4]].map(|data| upload(&backend, &data));
    let lengths = [3, 0, 1000, 1, 2];
    let tickets = lengths.map(|length| backend.submit(&vec![copy(a, b, 16, true); length], true).unwrap());
    let untimed = backend.submit(&[copy(a, b, 16, false)], false).unwrap();
    backend.wait(untimed).unwrap();
    for (ticket, length) in tickets.into_iter().zip(lengths).rev() {
        assert_eq!(backend.timings(ticket).unwrap().len(), length);
    }
    for none in [tickets[0], untimed, Ticket(0), Ticket(untimed.0 + 1)] {
        let error = backend.timings(none).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "timings", .. }), "{error}");
    }
}

#[test]
fn timings_of_a_batch_that_has_not_run_are_refused() {
    let backend = open();
    let [a, b] = [vec![0; 1 << 24], vec![1; 1 << 24]].map(|data| upload_bytes(&backend, &data));
    let ticket = backend.submit(&vec![copy(a, b, 1 << 24, true); 50], true).unwrap();
    // 800 MiB are still on their way.
    assert!(backend.timings(ticket).is_err());
    backend.wait(ticket).unwrap();
    assert_eq!(backend.timings(ticket).unwrap().len(), 50);
}
