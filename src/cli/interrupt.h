// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C: the first one asks the work in hand to end cleanly, the second one ends the program.
#pragma once

namespace pointsman::cli {

// From here on SIGINT and SIGTERM set a flag.
void catch_interrupts();
bool was_interrupted();
// Forgets the first one and waits for another: a chat goes on after an interrupted answer.
void reset_interrupt();

}  // namespace pointsman::cli
