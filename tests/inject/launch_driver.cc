// Reads tables from stdin, one per line: "inputs outputs symbols... ; words...". Prints for each
// "error WHY", or the scratch bytes, then tasks of each phase, then dims of each result, or "bad"
// where a program has no value.
#include <iostream>
#include <sstream>

#include "launch.h"

namespace {

std::string Value(const stitch::Program& program, const std::vector<int64_t>& symbols) {
  int64_t value = 0;
  return stitch::Evaluate(program, symbols.data(), &value) ? std::to_string(value) : "bad";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream text(line);
    int inputs = 0, outputs = 0;
    text >> inputs >> outputs;
    std::vector<int64_t> symbols, words;
    bool in_words = false;
    for (std::string item; text >> item;) {
      if (item == ";") {
        in_words = true;
      } else {
        (in_words ? words : symbols).push_back(std::stoll(item));
      }
    }
    stitch::Table table;
    std::string error;
    if (!stitch::Decode(words.data(), words.size(), inputs, outputs, &table, &error)) {
      std::cout << "error " << error << "\n";
      continue;
    }
    symbols.resize(std::max(symbols.size(), table.symbols.size()), 1);
    std::cout << Value(table.scratch, symbols);
    for (const auto& phase : table.tasks) std::cout << " " << Value(phase, symbols);
    for (const auto& result : table.results) {
      for (const auto& dim : result.shape) std::cout << " " << Value(dim, symbols);
    }
    std::cout << "\n";
  }
}
