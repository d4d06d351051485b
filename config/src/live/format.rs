//! Formats settings as in a file.

use abi::machine::ConfigValue;
use std::collections::BTreeMap;

/// Formats a guest's description as in a file.
pub(super) fn format_guest(guest: &ConfigValue) -> String {
    let mut text = "guest = [".to_owned();
    write(guest, &mut text);
    text + "]\n"
}

pub(super) fn write(value: &ConfigValue, to: &mut String) {
    match value {
        ConfigValue::Flag(flag) => to.push_str(&flag.to_string()),
        ConfigValue::Number(number) => to.push_str(&number.to_string()),
        ConfigValue::Real(number) => to.push_str(&format!("{number:?}")),
        ConfigValue::Text(text) => to.push_str(&quoted(text)),
        ConfigValue::List(list) => {
            to.push('[');
            for (n, value) in list.iter().enumerate() {
                if n > 0 {
                    to.push_str(", ");
                }
                write(value, to);
            }
            to.push(']');
        }
        ConfigValue::Section(keys) => write_section(keys, to),
    }
}

fn write_section(keys: &BTreeMap<String, ConfigValue>, to: &mut String) {
    to.push('{');
    for (n, (key, value)) in keys.iter().enumerate() {
        if n > 0 {
            to.push_str(", ");
        }
        to.push_str(&quoted(key));
        to.push_str(" = ");
        write(value, to);
    }
    to.push('}');
}

/// Quotes a text, and writes special and control characters as escapes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
