//! Label selectors.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A selector of objects by their labels, as in the API. An empty one selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LabelSelector {
    #[serde(default, deserialize_with = "crate::api::or_default")]
    match_labels: Labels,
    #[serde(default, deserialize_with = "crate::api::or_default")]
    match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default, deserialize_with = "crate::api::or_default")]
    values: Vec<String>,
}

/// A selector with an operator or values that the API does not have: it may select any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSelector;

impl LabelSelector {
    /// Returns whether all requirements are understood.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        // The object does not affect whether a selector can be decoded, so any labels suffice.
        self.selects(&Labels::new()).is_ok()
    }

    /// Returns whether it selects an object with these labels.
    ///
    /// # Errors
    ///
    /// Returns an error if a requirement is not one of the API.
    pub fn selects(&self, labels: &Labels) -> Result<bool, UnknownSelector> {
        let has = |(key, value)| labels.get(key) == Some(value);
        let mut selects = self.match_labels.iter().all(has);
        for requirement in &self.match_expressions {
            selects &= requirement.is_met_by(labels)?;
        }
        Ok(selects)
    }
}

impl Requirement {
    fn is_met_by(&self, labels: &Labels) -> Result<bool, UnknownSelector> {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match (self.operator.as_str(), self.values.is_empty()) {
            ("In", false) => Ok(is_listed),
            // An object without the label matches, too.
            ("NotIn", false) => Ok(!is_listed),
            ("Exists", true) => Ok(value.is_some()),
            ("DoesNotExist", true) => Ok(value.is_none()),
            _ => Err(UnknownSelector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn selects(selector: &Value, pairs: &[(&str, &str)]) -> Result<bool, UnknownSelector> {
        let selector: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
        selector.selects(&labels(pairs))
    }

    #[test]
    fn requirements_are_those_of_the_api() {
        let expression = |operator: &str, values: &[&str]| {
            let one = json!({ "key": "a", "operator": operator, "values": values });
            json!({ "matchExpressions": [one] })
        };
        let web = [("a", "web")];
        for (selector, of_web, of_none) in [
            (json!({}), true, true),
            (
                json!({ "matchLabels": null, "matchExpressions": null }),
                true,
                true,
            ),
            (json!({ "matchLabels": { "a": "web" } }), true, false),
            (
                json!({ "matchLabels": { "a": "web", "b": "x" } }),
                false,
                false,
            ),
            (expression("In", &["db", "web"]), true, false),
            (expression("In", &["db"]), false, false),
            (expression("NotIn", &["web"]), false, true),
            (expression("NotIn", &["db"]), true, true),
            (expression("Exists", &[]), true, false),
            (expression("DoesNotExist", &[]), false, true),
        ] {
            assert_eq!(selects(&selector, &web), Ok(of_web), "{selector}");
            assert_eq!(selects(&selector, &[]), Ok(of_none), "{selector}");
        }
        for selector in [
            expression("In", &[]),
            expression("NotIn", &[]),
            expression("Exists", &["x"]),
            expression("in", &["web"]),
            expression("Gt", &["1"]),
        ] {
            assert_eq!(selects(&selector, &web), Err(UnknownSelector), "{selector}");
        }
    }

    fn small_labels() -> impl Strategy<Value = Labels> {
        prop::collection::btree_map("[ab]", "[xy]", 0..3)
    }

    proptest! {
        /// A selector equals the conjunction of its parts, and each operator the negation of its
        /// counterpart.
        #[test]
        fn selector_is_the_conjunction_of_its_parts(
            labels in small_labels(),
            wanted in small_labels(),
            key in "[ab]",
            values in prop::collection::vec("[xy]", 1..3),
        ) {
            let one = |operator: &str, values: &[String]| LabelSelector {
                match_expressions: vec![Requirement {
                    key: key.clone(),
                    operator: operator.to_owned(),
                    values: values.to_vec(),
                }],
                ..LabelSelector::default()
            };
            let holds = |selector: &LabelSelector| selector.selects(&labels).unwrap();
            let (is_in, not_in) = (one("In", &values), one("NotIn", &values));
            prop_assert_eq!(holds(&is_in), !holds(&not_in));
            prop_assert_eq!(holds(&one("Exists", &[])), !holds(&one("DoesNotExist", &[])));
            let any = values.iter().any(|value| labels.get(&key) == Some(value));
            prop_assert_eq!(holds(&is_in), any);
            let exact = LabelSelector { match_labels: wanted.clone(), ..LabelSelector::default() };
            let by_in: Vec<LabelSelector> = wanted.iter().map(|(key, value)| LabelSelector {
                match_expressions: vec![Requirement {
                    key: key.clone(),
                    operator: "In".to_owned(),
                    values: vec![value.clone()],
                }],
                ..LabelSelector::default()
            }).collect();
            prop_assert_eq!(holds(&exact), by_in.iter().all(holds));
            let both = LabelSelector {
                match_labels: wanted,
                match_expressions: is_in.match_expressions.clone(),
            };
            prop_assert_eq!(holds(&both), holds(&exact) && holds(&is_in));
        }
    }
}
