//! Property tests: no file causes a panic, and a round trip preserves all values.

use super::*;
use crate::domain::DriverConfig;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,400}") {
        let _ = parse("f", &text);
    }

    /// A damaged file causes no panic. Every mistake has a position.
    #[test]
    fn damaged_files_do_not_panic(
        at in 0..SMALL.len(), cut in 0..40usize, insert in "[\\[\\]\"={}#\\-.a0-9\n ]{0,6}",
    ) {
        let mut bytes = SMALL.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, insert.bytes());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match parse("f", &text) {
            Ok(config) => prop_assert!(config.machine().is_ok()),
            Err(problems) => for problem in problems.list() {
                prop_assert!(!problem.what.is_empty() && !problem.remedy.is_empty());
                prop_assert_eq!(problem.file.as_deref(), Some("f"));
            },
        }
    }

    #[test]
    fn arbitrary_values_do_not_panic(value in prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()), any::<f64>().prop_map(|x| format!("{x:?}")),
        "\"[^\"\\\\]{0,20}\"", Just("nan".to_owned()), Just("inf".to_owned()),
        Just("[]".to_owned()), Just("{}".to_owned())], key in 0..40usize)
    {
        // Replace one value of the example by an arbitrary one.
        let mut n = 0;
        let text = uncommented().lines().fold(String::new(), |mut text, line| {
            let line = match line.split_once(" = ") {
                Some((name, _)) if !line.starts_with('#') => {
                    n += 1;
                    if n == key { format!("{name} = {value}") } else { line.to_owned() }
                }
                _ => line.to_owned(),
            };
            let _ = writeln!(text, "{line}");
            text
        });
        if let Ok(config) = parse("f", &text) {
            prop_assert!(config.machine().is_ok());
        }
    }

    /// A round trip preserves a configuration.
    #[test]
    fn generated_files_round_trip(
        grants in 0..5usize, offloads in 0..3usize, slots in 0..5u32, buffers in 32..4096u32,
        workers in 1..4u32,
        guests in vec((1..5usize, option::of(1..100_000u32), 1..1000u32, any::<bool>()), 0..6),
    ) {
        // Each worker's window must fit the grants of all guests, and its size is limited.
        let guests = &guests[..guests.len().min(6 / workers as usize)];
        let grant_words = ["copy", "map", "persistent", "counted", "unchecked"];
        let offload_words = ["none", "checksum", "tso"];
        let slots = 256 << slots;
        let mut text = format!(
            "[driver]\nworkers = {workers}\ngrants = \"{}\"\noffloads = \"{}\"\n\
             [ring]\nslots = {slots}\n[buffers]\nto_guest = {buffers}\n\
             [[nic]]\nname = \"n\"\nkind = \"tap\"\n",
            grant_words[grants], offload_words[offloads],
        );
        for (n, (vifs, rate, weight, touch)) in guests.iter().enumerate() {
            let _ = writeln!(text, "[[guest]]\nname = \"g{n}\"");
            for _ in 0..*vifs {
                let _ = writeln!(
                    text,
                    "[[guest.vif]]\nendpoint = \"sink\"\ntouch = {touch}\nweight = {weight}"
                );
                if let Some(rate) = rate {
                    let _ = writeln!(text, "rate_mbps = {rate}");
                }
            }
        }
        let config = parse("f", &text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let modes = [
            GrantMode::Copy,
            GrantMode::Map,
            GrantMode::Persistent,
            GrantMode::Counted,
            GrantMode::Unchecked,
        ];
        prop_assert_eq!(config.driver.grants, modes[grants]);
        prop_assert_eq!(config.driver.workers, workers);
        prop_assert_eq!(config.ring.slots, slots);
        prop_assert_eq!(config.buffers.to_guest, buffers);
        prop_assert_eq!(config.guests.len(), guests.len());
        for (read, (vifs, rate, weight, touch)) in config.guests.iter().zip(guests) {
            prop_assert_eq!(read.vifs.len(), *vifs);
            for vif in &read.vifs {
                let mut want = Vif::new(Endpoint::Sink { touch: *touch });
                want.settings.rate_mbps = rate.map(f64::from);
                want.settings.weight = *weight;
                prop_assert_eq!(vif, &want);
            }
        }
        let machine = config.machine().map_err(|e| TestCaseError::fail(e.to_string()))?;
        // Each slot of the window belongs to exactly one vif.
        for worker in machine.domains.iter().take(workers as usize) {
            let driver: DriverConfig = serde_json::from_str(&worker.config).unwrap();
            let mut next = 0;
            for (vif, conn) in driver.vifs.iter().zip(0..) {
                prop_assert_eq!((vif.conn, vif.first_slot), (conn, next));
                next += vif.slots;
                // The sub-tables of the new grant mechanism follow the slots of the vif's pages.
                prop_assert_eq!(vif.tables_slot, next);
                if config.driver.grants.has_tables() {
                    next += abi::counted::table_slots(vif.slots);
                }
            }
            prop_assert_eq!(worker.window_slots, next);
        }
        for domain in &machine.domains {
            prop_assert!(domain.grant_entries.is_power_of_two());
        }
    }
}
