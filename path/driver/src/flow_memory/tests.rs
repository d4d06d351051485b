use super::*;
use shmem::Area;

const NOW: u64 = 1_000_000_000;

fn config(flow_tables: u32) -> DriverConfig {
    let text = format!(
        "[driver]\nflows = 64\nflow_tables = {flow_tables}\n\
         [[nic]]\nname = \"wire\"\nkind = \"local\"\n"
    );
    let machine = config::parse("", &text).unwrap().machine().unwrap();
    serde_json::from_str(&machine.domains[0].config).unwrap()
}

fn memory(config: &DriverConfig) -> Span {
    Area::anonymous(FlowMemory::bytes(config)).unwrap().span()
}

/// FW-10: in the next process, each port gets its previous table, in any order of adding the ports.
/// A new port gets none of these tables.
#[test]
fn next_process_adopts_the_tables_of_its_ports() {
    let config = config(3);
    let span = memory(&config);
    let mut before = FlowMemory::new(span, &config);
    for (port, identity) in [(0, 10), (1, 11)] {
        before.table(port, identity, NOW).unwrap();
    }
    let mut after = FlowMemory::new(span, &config);
    let places = |memory: &FlowMemory| memory.places.iter().map(|(_, of)| *of).collect::<Vec<_>>();
    for (port, identity) in [(5, 99), (6, 11), (7, 10)] {
        after.table(port, identity, NOW).unwrap();
    }
    assert_eq!(places(&after), [Some(7), Some(6), Some(5)]);
}

#[test]
fn released_table_frees_its_place() {
    let config = config(1);
    let mut memory = FlowMemory::new(memory(&config), &config);
    let flows = memory.table(0, 10, NOW).unwrap();
    let refused = memory.table(1, 11, NOW).unwrap_err();
    assert!(refused.contains("raise `flow_tables`"), "{refused}");
    let place = memory.places[0].0;
    assert!(!Flows::is_free(place));
    memory.release(0, flows);
    assert!(Flows::is_free(place));
    memory.table(1, 11, NOW).unwrap();
}

#[test]
fn places_fill_the_pages_that_config_reserves() {
    let config = config(2);
    assert_eq!(FlowMemory::bytes(&config), 2 * 2 * abi::PAGE);
    let memory = FlowMemory::new(memory(&config), &config);
    assert_eq!(memory.places.len(), 2);
    let other = |flows| {
        let mut other = config.clone();
        other.driver.flows = flows;
        other
    };
    for flows in [64, 128, 4096, 65_536] {
        let (whole, pages) = (
            Flows::bytes(flows as usize),
            flow_table_pages(flows) as usize,
        );
        assert!(
            whole <= pages * abi::PAGE && whole > (pages - 1) * abi::PAGE,
            "{flows}"
        );
        assert_eq!(FlowMemory::bytes(&other(flows)), 2 * pages * abi::PAGE);
    }
}
