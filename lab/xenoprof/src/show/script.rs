//! Text forms of a session for other tools: folded stacks, and the text of `perf script`.

use super::flame;
use crate::model::{SampledEvent, Session};
use figures::clean;
use std::io::Write;

/// Writes a line `domain;outermost;…;innermost MICROSECONDS` for each stack, in exact time as in
/// flame graphs, or with occurrences of a first event that does not measure time.
///
/// # Errors
/// Returns an error if the names of the frames take too much memory, or writing to `out` fails.
pub fn folded(session: &Session, out: &mut impl Write) -> anyhow::Result<()> {
    for line in flame::folded(session, None)? {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Writes each sample of all events in the form of `perf script`, without the idle task. The name
/// of a process consists of the names of its domain and its thread.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn perf(session: &Session, out: &mut impl Write) -> anyhow::Result<()> {
    let events: Vec<SampledEvent> = session.head.events().collect();
    for sample in &session.samples {
        let (Some(sampled), Some(thread), Some(domain)) = (
            events.get(sample.4 as usize),
            session.thread(sample),
            session.domains.get(session.domain_of(sample)),
        ) else {
            continue;
        };
        if thread.pid == 0 {
            continue;
        }
        let name = format!(
            "{}/{}",
            clean::line(&domain.name),
            clean::line(&thread.name)
        );
        // The fields are separated by spaces.
        let name = name.replace(char::is_whitespace, "_");
        let at_ns = session.head.started_raw_ns.saturating_add(sample.0);
        let (pid, tid, cpu) = (thread.pid, thread.tid, sample.1);
        let (s, us) = (at_ns / 1_000_000_000, at_ns / 1000 % 1_000_000);
        let (period, event) = (sampled.period, clean::line(&sampled.event));
        writeln!(
            out,
            "{name} {pid}/{tid} [{cpu:03}] {s}.{us:06}: {period} {event}: "
        )?;
        for (number, frame) in session.frames_of(sample.3) {
            let module = session
                .module(frame)
                .map_or("[unknown]", |m| m.path.as_str());
            let (symbol, module) = (clean::line(&frame.symbol), clean::line(module));
            let module = if frame.inlined {
                "inlined".into()
            } else {
                module
            };
            // A session has no addresses of the kernel, so its functions are numbered.
            let address = frame.code.map_or(number as u64 + 1, |code| code.0);
            writeln!(out, "\t{address:16x} {symbol} ({module})")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{session, with_page_faults};

    fn written(write: impl Fn(&Session, &mut Vec<u8>) -> anyhow::Result<()>) -> String {
        let mut session = session();
        session.threads[0].name = "two words".to_owned();
        session.domains[0].cpu_ns = Some(300_000_000);
        let mut out = Vec::new();
        write(&session, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn folded_stacks_have_exact_times() {
        assert_eq!(
            written(folded),
            "driver;driver::turn::run;shmem::engine::copy 180000\n\
             driver;driver::turn::run;tun_get_user;tcp_v4_rcv;tcp_v4_rcv 120000\n"
        );
    }

    #[test]
    fn every_sample_has_its_event() {
        let (mut stacks, mut samples) = (Vec::new(), Vec::new());
        let both = with_page_faults();
        perf(&both, &mut samples).unwrap();
        let samples = String::from_utf8(samples).unwrap();
        let count = |event: &str| samples.matches(event).count();
        assert_eq!(count(" 1000000 cpu-clock: \n"), 100);
        assert_eq!(count(" 2 page-faults: \n"), 120);
        folded(&both.of_event(1), &mut stacks).unwrap();
        assert_eq!(
            String::from_utf8(stacks).unwrap(),
            "driver;driver::turn::run;shmem::engine::copy 180\n\
             driver;driver::turn::run;tun_get_user;tcp_v4_rcv;tcp_v4_rcv 60\n"
        );
    }

    #[test]
    fn samples_have_the_form_of_perf_script() {
        let text = written(perf);
        let samples: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(samples.len(), 100, "idle samples are left out");
        let lines: Vec<&str> = samples[0].lines().collect();
        assert_eq!(
            lines,
            [
                "driver/two_words 5/5 [000] 0.000000: 1000000 cpu-clock: ",
                "\t            2004 shmem::engine::copy (/bin/driver)",
                "\t            1010 driver::turn::run (/bin/driver)",
            ]
        );
    }
}
