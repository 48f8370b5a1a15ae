//! Classes that nothing leads to.
//!
//! Rule: a leaf is the default, or a filter leads to it. Another is kept, for nothing is lost by it, and warned of, in place as on a wire or a
//! port: so a file that one command takes all take, and a filter may be written after its class.
//!
//! Pure.

use weir_core::classify::{Classifier, Target};

use super::{ClassConfig, Reader};

impl Reader<'_> {
    /// A warning for each leaf that nothing leads to, in the order of the file; `order` has the place in the file of each class.
    pub(super) fn unreached(
        &self,
        order: &[usize],
        classes: &[ClassConfig],
        classifier: &Classifier,
    ) -> Vec<String> {
        let mut is_reached = vec![false; classes.len()];
        let rules = classifier.rules().iter().map(|rule| rule.target);
        for target in rules.chain([classifier.otherwise()]) {
            if let Target::Class(class) = target {
                is_reached[usize::from(class)] = true;
            }
        }
        let all = order.iter().zip(classes).zip(is_reached);
        let unreached = all.filter(|((_, class), is_reached)| class.leaf.is_some() && !is_reached);
        let mut places: Vec<usize> = unreached.map(|((&place, _), _)| place).collect();
        places.sort_unstable();
        let told = places.into_iter().map(|place| {
            let class = &self.file.class[place];
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
    use super::super::{Classes, Interfaces, read_each, read_in_place};

    fn read(text: &str) -> Result<Classes, Vec<String>> {
        let names = vec![("a", 0), ("b", 1), ("veth-a", 0), ("veth-b", 1)];
        read_each("f.toml", text, &Interfaces::of_ports(names))
    }

    const TWO: &str = "default = \"x\"\n[[class]]\nname = \"x\"\nrate = \"1mbit\"\n[[class]]\nname = \"y\"\nrate = \"1mbit\"\n";

    #[test]
    fn a_leaf_that_nothing_leads_to_is_warned_of() {
        let told = read(TWO).unwrap().warnings;
        assert!(
            told.len() == 1 && told[0].starts_with("f.toml:6:8: nothing leads to the class \"y\""),
            "{told:?}"
        );
        let reached = read(&format!("{TWO}[[filter]]\nto_ports = 80\nclass = \"y\"\n")).unwrap();
        assert_eq!(reached.warnings, Vec::<String>::new());
        assert_eq!(super::super::read("f.toml", TWO, ["a", "b"]).unwrap().warnings, told, "a wire's");
        assert_eq!(read_in_place("f.toml", TWO).unwrap().warnings, told, "in place");
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
