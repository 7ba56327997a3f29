//! When commands ran on the device: [`Device::profile`](crate::Device::profile).

use super::roofline::Roofline;
use crate::base::clock;
use crate::kernels::Work;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A command's name in a profile, and what it does.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    pub name: String,
    /// The bytes that it touches.
    pub bytes: u64,
    /// The work of a kernel. `None` for copies.
    pub work: Option<Work>,
}

impl Label {
    /// Labels a command that copies.
    pub fn copy(name: impl Into<String>, bytes: u64) -> Label {
        Label { name: name.into(), bytes, work: None }
    }
}

/// A command and when it ran.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TimedCommand {
    /// The kernel's name, or `upload`, `read` or `copy`.
    pub name: String,
    /// When the device began with it, on the host's clock.
    pub start: Instant,
    /// When it was done.
    pub end: Instant,
    /// The bytes that were copied, or that the kernel touched at most. Elementwise kernels and lookups (embeddings, for
    /// example) tell what they touch of a large buffer. For others, whole buffers count.
    pub bytes: u64,
    /// Whether it ran beside the other commands, on a queue that only copies.
    pub beside: bool,
    /// The work of a kernel. `None` for copies.
    work: Option<Work>,
}

impl TimedCommand {
    /// `times` are numbers from [`clock::now`].
    pub(crate) fn new(label: Label, times: Range<u64>) -> TimedCommand {
        let Label { name, bytes, work } = label;
        TimedCommand {
            name,
            start: clock::instant(times.start),
            end: clock::instant(times.end.max(times.start)),
            bytes,
            beside: false,
            work,
        }
    }

    /// The same for a command of a queue that only copies.
    pub(crate) fn beside(label: Label, times: Range<u64>) -> TimedCommand {
        TimedCommand { beside: true, ..TimedCommand::new(label, times) }
    }

    /// How long the device took for it.
    pub fn duration(&self) -> Duration {
        self.end.saturating_duration_since(self.start)
    }

    /// The products that a kernel adds up, for kernels whose time may depend on arithmetic: matrix products, attention
    /// and convolutions. A product and its addition are one.
    pub fn products(&self) -> u64 {
        self.work.map_or(0, |work| work.products)
    }

    /// The least time that a kernel could take on a device like that, for its bytes and its products. `None` for
    /// uploads, reads and copies: other limits hold for them.
    pub fn least_time(&self, roofline: &Roofline) -> Option<Duration> {
        Some(roofline.least_time(self.bytes, self.work?))
    }
}

/// Something that a thread of the host did while a device was profiled.
///
/// | its name | what it did |
/// |---|---|
/// | `plan` | decided how pending operations run; the other spans may lie within |
/// | `compile` and the kernel's name | had the driver compile a kernel, or load its binary |
/// | `record` and the kernel's name | recorded a launch |
/// | `submit` | encoded a batch, and gave it to the driver |
/// | `wait` | waited for the device |
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostSpan {
    /// What it did, in the first word.
    pub name: String,
    /// When it began.
    pub start: Instant,
    /// When it had done it.
    pub end: Instant,
    /// The thread.
    pub thread: ThreadId,
}

impl HostSpan {
    /// How long the thread took for it.
    pub fn duration(&self) -> Duration {
        self.end.saturating_duration_since(self.start)
    }
}

/// The commands that ran while a device was profiled, in the order in which they began, and what the host did.
/// Commands are timed one at a time. Only uploads by a queue that only copies run beside them.
///
/// `Display` prints a table of the commands by name, the largest total time first, and the host's times. If
/// [`Device::roofline`](crate::Device::roofline) was called before, the column `roof` tells how much of their time the
/// kernels need at least. It may be over 100 % where the device's caches hold the data, or where whole buffers count.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Profile {
    /// The device's string, as in `vulkan:0`.
    pub device: String,
    /// When profiling began.
    pub start: Instant,
    /// When the last command was done and the host knew it.
    pub end: Instant,
    /// The commands.
    pub commands: Vec<TimedCommand>,
    /// What threads of the host did for the device, in the order in which they had done it.
    pub host: Vec<HostSpan>,
    /// How fast the device can be, if it has been measured.
    pub roofline: Option<Roofline>,
}

impl Profile {
    /// Returns the times that the commands took, added up: also of those that ran beside others.
    pub fn device_time(&self) -> Duration {
        self.commands.iter().map(TimedCommand::duration).sum()
    }

    /// Converts the profile to the [Trace Event Format], which `chrome://tracing` and Perfetto show. It has complete
    /// events, with times in microseconds since the profile's start. Needs the feature `chrome-trace`.
    ///
    /// [Trace Event Format]: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    #[cfg(feature = "chrome-trace")]
    pub fn to_chrome_trace(&self) -> String {
        use serde_json::json;
        let microseconds = |duration: Duration| duration.as_nanos() as f64 / 1000.0;
        let process = json!({
            "name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": { "name": self.device },
        });
        let events = self.commands.iter().map(|command| {
            json!({
                "name": command.name, "cat": "device", "ph": "X", "pid": 1, "tid": 1 + u32::from(command.beside),
                "ts": microseconds(command.start.saturating_duration_since(self.start)),
                "dur": microseconds(command.duration()),
                "args": { "bytes": command.bytes },
            })
        });
        let host = json!({ "name": "process_name", "ph": "M", "pid": 2, "tid": 1, "args": { "name": "host" } });
        let mut threads: Vec<ThreadId> = Vec::new();
        let spans = self.host.iter().map(|span| {
            let place = threads.iter().position(|known| *known == span.thread).unwrap_or_else(|| {
                threads.push(span.thread);
                threads.len() - 1
            });
            json!({
                "name": span.name, "cat": "host", "ph": "X", "pid": 2, "tid": place + 1,
                "ts": microseconds(span.start.saturating_duration_since(self.start)),
                "dur": microseconds(span.duration()),
            })
        });
        let spans: Vec<_> = spans.collect();
        let events: Vec<_> = [process, host].into_iter().chain(events).chain(spans).collect();
        json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
    }
}

/// All commands of one name.
#[derive(Default)]
struct Row {
    count: u32,
    total: Duration,
    bytes: u64,
    /// The least time for all of them, if it is known.
    least: Option<Duration>,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: HashMap<&str, Row> = HashMap::new();
        for command in &self.commands {
            let row = rows.entry(&command.name).or_default();
            row.count += 1;
            row.total += command.duration();
            row.bytes += command.bytes;
            let least = self.roofline.as_ref().and_then(|roofline| command.least_time(roofline));
            row.least = least.map(|least| row.least.unwrap_or_default() + least);
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by(|(a, x), (b, y)| y.total.cmp(&x.total).then_with(|| a.cmp(b)));
        let all = self.device_time().as_secs_f64().max(f64::MIN_POSITIVE);
        let roof = |text: &str| if self.roofline.is_some() { format!(" {text:>6}") } else { String::new() };
        let (count, total, mean) = ("count", "total ms", "mean us");
        writeln!(f, "{count:>7} {total:>12} {:>6} {mean:>12} {:>9}{}  command", "share", "GB/s", roof("roof"))?;
        for (name, row) in &rows {
            let seconds = row.total.as_secs_f64();
            let rate = if seconds > 0.0 { row.bytes as f64 / seconds / 1e9 } else { 0.0 };
            let (share, mean) = (100.0 * seconds / all, 1e6 * seconds / f64::from(row.count));
            let total = 1e3 * seconds;
            let part = |least: Duration| format!("{:.1}%", 100.0 * least.as_secs_f64() / seconds);
            let part = roof(&row.least.filter(|_| seconds > 0.0).map_or_else(|| "-".into(), part));
            writeln!(f, "{:>7} {total:>12.3} {share:>5.1}% {mean:>12.1} {rate:>9.1}{part}  {name}", row.count)?;
        }
        let mut host: BTreeMap<&str, Duration> = BTreeMap::new();
        for span in &self.host {
            let what = span.name.split(' ').next().unwrap_or_default();
            *host.entry(what).or_default() += span.duration();
        }
        for (what, time) in host {
            let (milliseconds, blank) = (1e3 * time.as_secs_f64(), "");
            writeln!(f, "{blank:>7} {milliseconds:>12.3} {blank:>29}{}  host: {what}", roof(blank))?;
        }
        let (wall, busy) = (self.end.saturating_duration_since(self.start), self.device_time());
        write!(
            f,
            "{} commands on {}: {:.3} ms on the device, {:.3} ms in all",
            self.commands.len(),
            self.device,
            1e3 * busy.as_secs_f64(),
            1e3 * wall.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let work = Some(Work { products: 1_500_000_000, ..Work::UNKNOWN });
        let command = |name: &str, times| TimedCommand::new(Label { name: name.into(), bytes: 3_000_000, work }, times);
        let start = clock::instant(1000);
        let commands = vec![
            command("small \"a\"", 2000..5000),
            command("large", 5000..1_005_000),
            command("small \"a\"", 1_006_000..1_009_600),
        ];
        let span = |name: &str, range: Range<u64>| HostSpan {
            name: name.into(),
            start: clock::instant(range.start),
            end: clock::instant(range.end),
            thread: std::thread::current().id(),
        };
        let host = vec![span("record a", 1200..1400), span("plan", 1100..1500), span("record b", 1600..1900)];
        let (device, end) = ("vulkan:0".into(), start + Duration::from_millis(2));
        Profile { device, start, end, commands, host, roofline: None }
    }

    #[cfg(feature = "chrome-trace")]
    #[test]
    fn the_trace_is_json_in_microseconds() {
        let trace: serde_json::Value = serde_json::from_str(&profile().to_chrome_trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 + 3 + 3);
        assert_eq!(events[0]["args"]["name"], "vulkan:0");
        assert_eq!(events[2]["name"], "small \"a\"");
        let times = |event: &serde_json::Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        assert_eq!(events[2..5].iter().map(times).collect::<Vec<_>>(), [(1.0, 3.0), (4.0, 1000.0), (1005.0, 3.6)]);
        assert!(events[2..5].iter().all(|event| event["ph"] == "X" && event["args"]["bytes"] == 3_000_000));
        assert_eq!(events[5..].iter().map(times).collect::<Vec<_>>(), [(0.2, 0.2), (0.1, 0.4), (0.6, 0.3)]);
        assert!(events[5..].iter().all(|event| event["pid"] == 2 && event["tid"] == 1 && event["cat"] == "host"));
    }

    #[test]
    fn the_table_adds_up_by_name() {
        let text = profile().to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["1", "1.000", "99.3%", "1000.0", "3.0", "large"]);
        assert_eq!(lines[2], ["2", "0.007", "0.7%", "3.3", "909.1", "small", "\"a\""]);
        let total = |what: &str| lines.iter().find(|line| line[1..] == ["host:", what]).map(|line| line[0]);
        assert_eq!(["plan", "record", "wait"].map(total), [Some("0.000"), Some("0.001"), None]);
        assert!(text.ends_with("3 commands on vulkan:0: 1.007 ms on the device, 2.000 ms in all"), "{text}");
    }

    #[test]
    fn the_table_tells_how_near_the_roof_kernels_are() {
        let mut profile = profile();
        profile.commands.push(TimedCommand::new(Label::copy("read", 300), 1_010_000..1_011_000));
        profile.roofline = Some(Roofline { bandwidth: 6e9, products: 2e12, matrix_products: None });
        let text = profile.to_string();
        let roof_of = |name: &str| {
            let line = text.lines().find(|line| line.ends_with(name)).unwrap();
            line.split_whitespace().nth(5).unwrap().to_owned()
        };
        // 0.5 ms for the bytes, 0.75 ms for the products.
        assert_eq!(["large", "read"].map(roof_of), ["75.0%", "-"]);
        assert!(text.contains(" GB/s   roof  command\n"), "{text}");
        let starts = text.lines().filter_map(|line| line.find("host:").or(line.find("command")));
        let starts: Vec<_> = starts.take(3).collect();
        assert!(starts.iter().all(|start| *start == starts[0]), "{text}");
    }

    #[test]
    fn times_that_run_backwards_are_empty() {
        let command = TimedCommand::new(Label::copy("", 0), Range { start: 20, end: 10 });
        assert_eq!(command.duration(), Duration::ZERO);
    }
}
