//! Numbers for display.

/// Returns a number with about three significant digits and separated thousands.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size >= 999.5 {
        let digits = format!("{:.0}", size);
        let mut text = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push('\u{202f}');
            }
            text.push(digit);
        }
        return if value < 0.0 {
            format!("-{text}")
        } else {
            text
        };
    }
    match size {
        s if s >= 99.5 => format!("{value:.0}"),
        s if s >= 9.95 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        s if s >= 0.995 => format!("{value:.2}"),
        s if s >= 0.000_95 => format!("{value:.3}"),
        _ => format!("{value:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.234, "1.23"),
            (0.5054, "0.505"),
            (0.9951, "1.00"),
            (0.000_12, "0.000120"),
            (12.34, "12.3"),
            (123.4, "123"),
            (999.7, "1\u{202f}000"),
            (1_234_567.0, "1\u{202f}234\u{202f}567"),
            (-1234.0, "-1\u{202f}234"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
