//! Help texts of the tasks.

use std::fmt::Write;

/// A task's help text.
struct TaskHelp {
    name: &'static str,
    /// Its arguments.
    arguments: &'static str,
    /// Its description, in lines of at most 80 columns.
    purpose: &'static str,
    /// An example's arguments.
    example: &'static str,
}

/// Every task. `compare`, `kubernetes`, `vfio` and `xen` print longer help texts themselves, and
/// `demo` prints that of `grantway demo`.
const TASKS: [TaskHelp; 20] = [
    TaskHelp {
        name: "build",
        arguments: "",
        purpose: "build grantway and the programs that it starts, to target/release/",
        example: "",
    },
    TaskHelp {
        name: "demo",
        arguments: "[ARGS…]",
        purpose: "build, then run `grantway demo ARGS…`; `cargo demo` is the same",
        example: "--quick",
    },
    TaskHelp {
        name: "test",
        arguments: "[--require] [ARGS…]",
        purpose: "run every test, then list the skipped tests and what they lack. ARGS are\n\
                  those of `cargo test`. --require: a skipped test fails",
        example: "-p net",
    },
    TaskHelp {
        name: "layering",
        arguments: "",
        purpose: "check the dependencies of crates and modules, and the uses of `unsafe`,\n\
                  against xtask/layering.txt; print the crates in the order of a received\n\
                  frame",
        example: "",
    },
    TaskHelp {
        name: "sizes",
        arguments: "",
        purpose: "check the length of functions, files and lines; print the lines of code\n\
                  per folder",
        example: "",
    },
    TaskHelp {
        name: "words",
        arguments: "[FOLDER…]",
        purpose: "find retired words and phrases (xtask/words.txt); default: everywhere",
        example: "docs specs",
    },
    TaskHelp {
        name: "links",
        arguments: "",
        purpose: "find broken links in pages, and broken paths in code",
        example: "",
    },
    TaskHelp {
        name: "book",
        arguments: "",
        purpose: "build the pages as a book, target/book/html, and check its links; needs\n\
                  mdbook",
        example: "",
    },
    TaskHelp {
        name: "dist",
        arguments: "[--built] [--check]",
        purpose: "build the Debian packages in target/dist; needs cargo-deb. --built: use\n\
                  the programs of an earlier build. --check: also run lintian, and install,\n\
                  upgrade and purge the packages in a separate root",
        example: "--check",
    },
    TaskHelp {
        name: "tcb",
        arguments: "",
        purpose: "count the lines and `unsafe` blocks of the trusted base; fail if a program\n\
                  exceeds its limit in xtask/layering.txt",
        example: "",
    },
    TaskHelp {
        name: "mutants",
        arguments: "[--kept] [MODULE…]",
        purpose: "check whether the tests detect small changes of ring, grants,\n\
                  classic-grants, counted-grants or bridge; default: all modules. Resumes an\n\
                  interrupted run. --kept: only print stored results. Needs cargo-mutants\n\
                  and prlimit",
        example: "ring bridge",
    },
    TaskHelp {
        name: "vfio",
        arguments: "",
        purpose: "test a NIC that is a PCI device behind an emulated IOMMU",
        example: "",
    },
    TaskHelp {
        name: "xen",
        arguments: "[TEST…|all] | exp [ARGS…]",
        purpose: "test the driver domain on the real Xen, in an emulated machine. exp:\n\
                  compare it there with the kernel's xen-netback, by work per packet;\n\
                  resumes an interrupted run",
        example: "all",
    },
    TaskHelp {
        name: "kubernetes",
        arguments: "[GROUP…]",
        purpose: "test Grantway as the network of a Kubernetes cluster of two nodes, on this\n\
                  system",
        example: "network policies",
    },
    TaskHelp {
        name: "compare",
        arguments: "COMMIT [OPTIONS]",
        purpose: "check whether the tree is as fast as that commit; resumes an interrupted\n\
                  run",
        example: "HEAD~3",
    },
    TaskHelp {
        name: "defences",
        arguments: "[--kept] [NAME…]",
        purpose: "remove each defence of xtask/defences.toml whose name contains a NAME\n\
                  (default: all), in a copy of the tree, and check that its test fails.\n\
                  Resumes an interrupted run. --kept: only print stored results",
        example: "\"starts no program\"",
    },
    TaskHelp {
        name: "soak",
        arguments: "[--kills N [--of PART] | --attaches N | --guests N] [--minutes M] [--fresh]",
        purpose: "disturb machines under load again and again, and check after each\n\
                  disturbance that everything recovers and nothing leaks. Resumes an\n\
                  interrupted run. Needs root\n\
                  --kills N     kill the driver domain N times (default: 1000)\n\
                  --of PART     kill driver, guest, manager, netd or vm (in turn,\n              \
                                each part of a virtual machine)\n\
                  --attaches N  attach and detach N guests, and kill processes\n              \
                                meanwhile\n\
                  --guests N    run mixed traffic of N guests (an even number) for\n              \
                                M minutes (default: 30); kill, profile and trace\n\
                  --minutes M   stop after M minutes; the next run continues\n\
                  --fresh       discard the results of earlier runs",
        example: "--kills 100 --of manager",
    },
    TaskHelp {
        name: "hostile",
        arguments: "[--minutes N] [--only guest|driver|vm|flow|queue]",
        purpose: "measure how much a hostile guest, driver domain or virtual machine, a\n\
                  SYN flood (flow), and forced revocations of a device's pages (queue)\n\
                  disturb innocent guests: ten machines, or the two of one attacker, for\n\
                  N minutes each (10). Needs root",
        example: "--minutes 1 --only guest",
    },
    TaskHelp {
        name: "fuzz-smoke",
        arguments: "[--guided] [--seconds N] [BODY…]",
        purpose: "run every fuzz target, or the named ones, for N seconds each (5).\n\
                  --guided: with coverage guidance; needs cargo-fuzz",
        example: "--seconds 60 bridge lro",
    },
    TaskHelp {
        name: "help",
        arguments: "[TASK]",
        purpose: "print this list, or the help text of one task, as `cargo xtask TASK\n\
                  --help` does",
        example: "soak",
    },
];

/// Tasks that handle `--help` themselves.
const OWN_HELP: [&str; 5] = ["compare", "demo", "kubernetes", "vfio", "xen"];

/// Returns the list of all tasks.
pub(crate) fn usage() -> String {
    let mut text = "usage: cargo xtask TASK [ARGS…]\n".to_owned();
    for task in &TASKS {
        let _ = write!(text, "\n  {}", command(task));
        for line in task.purpose.lines() {
            let _ = write!(text, "\n      {line}");
        }
    }
    text
}

/// Returns the help text of the task, if these arguments request it and the task does not print it
/// itself.
pub(crate) fn requested(task: &str, args: &[String]) -> Option<String> {
    let is_help = |arg: &String| matches!(arg.as_str(), "--help" | "-h");
    let name = match (task, args) {
        ("help", [name]) if !is_help(name) => name,
        (_, args) if !OWN_HELP.contains(&task) && args.first().is_some_and(is_help) => task,
        _ => return None,
    };
    let task = TASKS.iter().find(|task| task.name == name)?;
    let example = format!("cargo xtask {} {}", task.name, task.example);
    Some(format!(
        "usage: cargo xtask {}\n\n{}\n\nexample: {}",
        command(task),
        task.purpose,
        example.trim_end()
    ))
}

fn command(task: &TaskHelp) -> String {
    format!("{} {}", task.name, task.arguments)
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_help_of_its_arguments() {
        for task in &TASKS {
            let asked = ["--help".to_owned()];
            let is_own = OWN_HELP.contains(&task.name);
            assert_eq!(requested(task.name, &asked).is_none(), is_own);
            let named = requested("help", &[task.name.to_owned()]).unwrap();
            assert!(named.contains(task.purpose) && named.contains("example: cargo xtask"));
            assert!(usage().contains(&command(task)));
        }
    }

    #[test]
    fn arguments_of_a_task_request_no_help() {
        let args = ["-p".to_owned(), "net".to_owned(), "--help".to_owned()];
        assert_eq!(requested("test", &args), None);
        assert_eq!(requested("help", &["nonsense".to_owned()]), None);
        assert!(usage().lines().all(|line| line.chars().count() <= 100));
    }
}
