//! Classes that nothing leads to.
//!
//! Rule: a leaf of a wire or a port is the default, or a filter leads to it. Another would show nowhere later, and is a fault; in place it is
//! a warning. The file of a `weir run` is judged as a wire's when it begins, because it may go by one.
//!
//! Pure.

use weir_core::classify::Target;

use super::{Classes, Reader};

impl Reader<'_> {
    /// A sentence for each leaf that nothing leads to, in the order of the file.
    pub(super) fn unreached(&self, classes: &Classes) -> Vec<String> {
        let mut is_reached = vec![false; classes.classes.len()];
        let rules = classes.classifier.rules().iter().map(|rule| rule.target);
        for target in rules.chain([classes.classifier.otherwise()]) {
            if let Target::Class(class) = target {
                is_reached[usize::from(class)] = true;
            }
        }
        let leaves = classes.classes.iter().zip(is_reached);
        let unreached: Vec<&str> = leaves
            .filter(|(class, is_reached)| class.leaf.is_some() && !is_reached)
            .map(|(class, _)| class.name.as_str())
            .collect();
        let of_file =
            self.file.class.iter().filter(|class| unreached.contains(&class.name.as_ref().as_str()));
        let told = of_file.map(|class| {
            let name = class.name.as_ref();
            let why = format!(
                "nothing leads to the class \"{name}\": write a filter with class = \"{name}\", make it the default, or take it out"
            );
            self.source.tell(class.name.span(), why)
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Interfaces, read_each};
    use super::*;

    fn read(text: &str) -> Result<Classes, Vec<String>> {
        let names = vec![("a", 0), ("b", 1), ("veth-a", 0), ("veth-b", 1)];
        read_each("f.toml", text, &Interfaces::of_ports(names))
    }

    const TWO: &str = "default = \"x\"\n[[class]]\nname = \"x\"\nrate = \"1mbit\"\n[[class]]\nname = \"y\"\nrate = \"1mbit\"\n";

    #[test]
    fn a_leaf_that_nothing_leads_to_is_told() {
        let told = read(TWO).unwrap_err();
        assert!(
            told.len() == 1 && told[0].starts_with("f.toml:6:8: nothing leads to the class \"y\""),
            "{told:?}"
        );
        assert!(read(&format!("{TWO}[[filter]]\nto_ports = 80\nclass = \"y\"\n")).is_ok());
        assert_eq!(super::super::read("f.toml", TWO, ["a", "b"]).unwrap_err(), told[0], "a wire's");
    }

    #[test]
    fn a_port_is_named_as_in_the_file_or_by_its_interface() {
        for (name, number) in [("b", 1), ("veth-a", 0)] {
            let filter = format!("[[filter]]\ninterface = \"{name}\"\nclass = \"y\"\n");
            let classes = read(&format!("{TWO}{filter}")).unwrap();
            assert_eq!(classes.classifier.rules()[0].conditions.interface, Some(number));
        }
        let told = read(&format!("{TWO}[[filter]]\ninterface = \"veth-x\"\nclass = \"y\"\n")).unwrap_err();
        assert!(
            told[0].starts_with("f.toml:9:13: the ports are a and b; did you mean \"veth-a\"?"),
            "{told:?}"
        );
    }
}
