//! Audits of queues with consumers.

use super::console::Console;
use crate::error::Result;
use crate::report;

impl Console {
    /// Checks a queue against itself and, if asked for, repairs what can be repaired. Repair one at a time.
    ///
    /// # Errors
    /// [`Error::NoQueue`](crate::Error::NoQueue), [`Error::WrongRecipe`](crate::Error::WrongRecipe), and those of the
    /// store.
    pub async fn audit(&self, name: &str, repair: bool) -> Result<report::Audit> {
        let found = self.find_dequeue(name, "audit").await?;
        let audit = if repair {
            found.queue.repair(&self.runner).await?
        } else {
            found.queue.audit(&self.reader).await?
        };
        let findings = audit.findings.iter().map(|finding| report::Finding {
            kind: finding.kind().to_owned(),
            detail: finding.to_string(),
        });
        Ok(report::Audit {
            queue: found.name,
            repaired: repair,
            findings: findings.collect(),
            unchecked: audit.unchecked.iter().map(ToString::to_string).collect(),
        })
    }
}
