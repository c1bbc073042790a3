// SPDX-License-Identifier: Apache-2.0
//
// Do the includes between the rooms of src/ point one way? Usage: check_layers ROOT. Prints each offending include; exit 1 when there
// is one. The table is that of ARCHITECTURE.md.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace fs = std::filesystem;

namespace {

const std::map<std::string, int> kLayer = {
    {"base", 0},  {"memory", 1}, {"tensor", 1}, {"quant", 1},  {"checkpoint", 2}, {"tokenizer", 2}, {"device", 2}, {"ops", 3},    {"experts", 3},
    {"comm", 3},  {"model", 4},  {"sample", 4}, {"engine", 5}, {"train", 5},      {"verify", 5},    {"pack", 5},      {"doctor", 5}, {"audit", 5},  {"server", 6},
    {"cli", 6},
};
// Arrows within one layer that are allowed.
const std::set<std::pair<std::string, std::string>> kSideways = {
    {"memory", "tensor"}, {"quant", "tensor"}, {"verify", "engine"}, {"train", "engine"}, {"pack", "verify"},
};

bool is_test(const fs::path& p) { return p.stem().string().ends_with("_test"); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_layers ROOT\n");
    return 2;
  }
  const fs::path root = argv[1];
  const std::regex include("^\\s*#\\s*include\\s*\"([^\"]+)\"");
  int offences = 0, files = 0;
  for (const fs::path top : {root / "src", root / "include"}) {
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      const fs::path& path = entry.path();
      const std::string extension = path.extension();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cc" && extension != ".inc")) continue;
      ++files;
      const fs::path relative = fs::relative(path, root);
      const std::string room = *std::next(relative.begin());  // src/<room>/..., include/pointsman/...
      std::ifstream in(path);
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string target = match[1];
        const std::string target_room = target.substr(0, target.find('/'));
        const char* why = nullptr;
        if (target_room == "pointsman") continue;  // public headers are for everybody
        if (room == "pointsman") {
          why = "a public header may include public headers only";
        } else if (target_room == "support") {
          if (!is_test(path)) why = "test support outside a test";
        } else if (kLayer.count(target_room) == 0) {
          why = "an include path starts at src/ with the name of a room";
        } else if (room != target_room && !(kLayer.at(target_room) < kLayer.at(room) || kSideways.count({room, target_room}) > 0)) {
          why = "points up or sideways";
        } else if (target_room == "cli" && room != "cli") {
          why = "nobody includes the command line";
        }
        if (why == nullptr) continue;
        std::printf("%s:%d: %s -> %s: %s\n", relative.c_str(), number, room.c_str(), target.c_str(), why);
        ++offences;
      }
    }
  }
  std::printf("%d files, %d offences\n", files, offences);
  return offences == 0 && files > 0 ? 0 : 1;
}
