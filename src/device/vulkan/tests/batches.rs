//! Batches: their steps, their order, their tickets.

use super::*;

#[test]
fn barriers_order_a_chain_within_a_batch() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    let steps: Vec<_> = (0..100)
        .map(|i| dispatch(kernel, if i % 2 == 0 { [x, one, y] } else { [y, one, x] }, n as u32, true))
        .collect();
    backend.submit(&steps, false).unwrap();
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn a_batch_sees_what_earlier_batches_wrote() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let n = 5000;
    let [x, one, y] = [vec![0.0; n], vec![1.0; n], vec![0.0; n]].map(|data| upload(&backend, &data));
    for _ in 0..50 {
        backend.submit(&[dispatch(kernel, [x, one, y], n as u32, false)], false).unwrap();
        backend.submit(&[dispatch(kernel, [y, one, x], n as u32, false)], false).unwrap();
    }
    assert_eq!(download(&backend, x, n), vec![100.0; n]);
}

#[test]
fn a_batch_may_have_thousands_of_dispatches() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let [x, one] = [[0.0; 4], [1.0; 4]].map(|data| upload(&backend, &data));
    for length in [1, 3000, 10, 7000] {
        let steps: Vec<_> = (0..length).map(|_| dispatch(kernel, [x, one, x], 4, true)).collect();
        backend.submit(&steps, false).unwrap();
    }
    assert_eq!(download(&backend, x, 4), [10_011.0; 4]);
}

#[test]
fn tickets_count_batches_which_complete_in_order() {
    let backend = open();
    assert_eq!(backend.completed().unwrap(), Ticket(0));
    backend.wait(Ticket(0)).unwrap();
    let mut last = Ticket(0);
    for number in 1..=100 {
        assert_eq!(backend.submit(&[], false).unwrap(), Ticket(number));
        let completed = backend.completed().unwrap();
        assert!(last <= completed && completed <= Ticket(number));
        last = completed;
    }
    backend.wait(Ticket(60)).unwrap();
    assert!(backend.completed().unwrap() >= Ticket(60));
    backend.wait(Ticket(100)).unwrap();
    assert_eq!(backend.completed().unwrap(), Ticket(100));
}

#[test]
fn threads_compile_submit_and_read_at_once() {
    let backend = open();
    let work = |thread: u32| {
        let kernel = compile(&backend, &add_kernel());
        let n = 100 + thread as usize;
        let [x, step] = [vec![0.0; n], vec![thread as f32; n]].map(|data| upload(&backend, &data));
        let mut tickets = Vec::new();
        for _ in 0..25 {
            tickets.push(backend.submit(&[dispatch(kernel, [x, step, x], n as u32, false)], false).unwrap());
        }
        assert_eq!(download(&backend, x, n), vec![25.0 * thread as f32; n]);
        backend.free(x);
        backend.free(step);
        tickets
    };
    let mut tickets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    tickets.sort_unstable();
    tickets.dedup();
    assert_eq!(tickets.len(), 200);
}

#[test]
fn steps_that_break_a_rule_are_refused() {
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let [a, b] = [32, 16].map(|bytes| backend.allocate(bytes, DEVICE).unwrap());
    let gone = backend.allocate(16, DEVICE).unwrap();
    backend.free(gone);
    let mut few_buffers = dispatch(kernel, [a, a, b], 4, false);
    let mut no_parameters = few_buffers.clone();
    let mut many_groups = few_buffers.clone();
    if let Command::Dispatch { buffers, .. } = &mut few_buffers.command {
        buffers.truncate(2);
    }
    if let Command::Dispatch { parameters, .. } = &mut no_parameters.command {
        parameters.clear();
    }
    if let Command::Dispatch { groups, .. } = &mut many_groups.command {
        groups[1] = u32::MAX;
    }
    for step in [few_buffers, no_parameters, many_groups] {
        assert!(matches!(backend.submit(&[step], false).unwrap_err(), Error::Kernel { .. }));
    }
    let wrong = [
        copy(a, b, 32, false),
        copy(a, b, 0, false),
        copy(a, a, 16, false),
        copy(gone, a, 16, false),
        dispatch(KernelId(7), [a, a, b], 4, false),
    ];
    for step in wrong {
        let error = backend.submit(std::slice::from_ref(&step), false).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "submit", .. }), "{step:?}: {error}");
    }
    assert!(backend.write(a, &[0; 64]).is_err());
    assert_eq!(backend.submit(&[copy(a, b, 16, false)], false).unwrap(), Ticket(1), "a refused batch takes no ticket");
}

/// Runs itself in another process, because validation is switched on for the whole process.
#[test]
fn validation_reports_a_missing_barrier() {
    const CHILD: &str = "MARQUETRY_TEST_VALIDATION_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let test = format!("{module}::validation_reports_a_missing_barrier");
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&test, "--exact", "--nocapture", "--test-threads=1"])
            .env("MARQUETRY_VALIDATION", "1")
            .env(CHILD, "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && output.contains("1 passed"),
            "{output}\n{}",
            String::from_utf8_lossy(&child.stderr)
        );
        return;
    }
    let backend = open();
    let kernel = compile(&backend, &add_kernel());
    let [a, b, c] = [(); 3].map(|()| backend.allocate(1024, DEVICE).unwrap());
    let copies = |barrier| vec![copy(a, b, 1024, false), copy(b, c, 1024, barrier)];
    let dispatches = |barrier| vec![dispatch(kernel, [a, a, b], 256, false), dispatch(kernel, [b, a, c], 256, barrier)];
    for hazard in [&copies as &dyn Fn(bool) -> Vec<Step>, &dispatches] {
        let error = backend.submit(&hazard(false), false).unwrap_err();
        assert!(matches!(&error, Error::Validation { message } if message.contains("SYNC-HAZARD")), "{error}");
        let ticket = backend.submit(&hazard(true), false).unwrap();
        backend.wait(ticket).unwrap();
    }
}
