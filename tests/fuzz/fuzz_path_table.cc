// SPDX-License-Identifier: Apache-2.0
// The file of bench ops --tune. What is accepted survives being written and read again, and every number of rows has a path.
#include "fuzz_input.h"
#include "ops/path_table.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table = pm::ops::parse_path_table(pm::fuzz::text_of(data, size));
  if (!table.ok()) return 0;
  const auto again = pm::ops::parse_path_table(pm::ops::path_table_json(*table));
  pm::fuzz::expect(again.ok());
  pm::fuzz::expect(again->key == table->key && again->shapes.size() == table->shapes.size());
  for (size_t i = 0; i < table->shapes.size(); ++i) {
    const pm::ops::TunedShape& shape = table->shapes[i];
    pm::fuzz::expect(again->shapes[i].shape == shape.shape && again->shapes[i].paths == shape.paths);
    for (const pm::DType w : pm::ops::kPanelFormats) {
      for (const int64_t rows : pm::ops::kPathRows) pm::fuzz::expect(static_cast<int>(shape.paths.path(w, rows)) < pm::ops::kNumPanelPaths);
    }
    pm::fuzz::expect(pm::ops::nearest_paths(*table, shape.shape) != nullptr);
  }
  return 0;
}
