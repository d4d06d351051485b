use super::*;
use config::domain::DriverConfig;

/// What lies in a guest's pages cannot be dropped: a guest with a limit gets no queue.
#[test]
fn who_is_limited_gets_its_frames_copied() {
    let guest = |name: &str, more: &str| {
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"sink\"\n{more}")
    };
    let rule = "[[guest.vif.rule]]\naction = \"deny\"\n";
    let limit = "rate_to_guest_mbps = 5\n";
    let text = [
        "[[nic]]\nname = \"wire\"\nkind = \"sim\"\nqueues = \"vmq\"\nvmq_queues = 2\n\
         addresses = [\"10.0.0.1/24\"]\n",
        &guest("a", ""),
        &guest("b", limit),
        &guest("c", &format!("rate_mbps = 5\n{rule}")),
        &guest("d", &format!("{limit}{rule}")),
    ]
    .concat();
    let machine = config::parse("f", &text).unwrap().machine().unwrap();
    let config: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let mut queues = Assignment::new(0, &config.nics[0]).unwrap();
    for (port, vif) in (1..).zip(&config.vifs) {
        queues.welcome(port, vif);
    }
    let arrivals = [1, 2, 3, 4].map(|port| queues.arrival(port));
    let [whole, header, copied] = [Arrival::Whole, Arrival::HeaderLast, Arrival::Copied];
    assert_eq!(arrivals, [whole, copied, header, copied]);
}
