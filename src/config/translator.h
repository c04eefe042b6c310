// Translates the settings of another framework to our trainer keys. Translator applies the framework's table
// keys.yaml; a derived class in config/frameworks contains the translations that need code. Used once, by one
// thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "config/backend_fields.h"
#include "config/foreign.h"
#include "config/problems.h"

namespace primus::config {

class Translator {
 public:
  // `ranks`: the number of ranks in the job, on which some settings depend.
  Translator(const BackendFields& fields, const Value& settings, std::int64_t ranks, Problems& problems);
  virtual ~Translator() = default;
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // Translates all settings. Adds a problem for each setting that the native engine does not support.
  Translation run();

 protected:
  // Called first. Returns false, after adding a problem, if the settings cannot be translated at all.
  virtual bool accepts() { return true; }
  // Translates what the table cannot express.
  virtual void translate() = 0;
  // Returns the setting that names the model.
  virtual std::string_view model_setting() const = 0;
  // Returns whether the settings may describe the architecture directly instead of naming one of our models.
  virtual bool describes_model() const { return false; }

  const BackendFields& fields() const { return fields_; }
  double ranks() const { return static_cast<double>(ranks_); }
  // The settings as written. Their origin is the value of the key `framework`.
  const Value& settings() const { return settings_; }
  Translation& result() { return result_; }

  // Returns the effective value: as set, or the framework's default.
  Value get(std::string_view path) const;
  bool is_set(std::string_view path) const;
  double real(std::string_view path) const { return get(path).real; }
  bool on(std::string_view path) const { return get(path).boolean; }
  std::string word(std::string_view path) const { return get(path).text; }
  // Returns the product of these sizes, each counted as at least 1.
  double model_parallel(std::initializer_list<std::string_view> paths) const;

  // Sets our key. `from`: the setting that determines the value.
  void put(std::string_view key, Value value, std::string_view from);
  void put(std::string_view key, double value, std::string_view from);
  void put_text(std::string_view key, std::string_view value, std::string_view from);

  // Sets our key to a value of the framework's recipe, which the experiment's settings override.
  void recommend(std::string_view key, Value value);

  // Reports a setting that the framework has but the native engine does not support.
  void refuse(std::string_view path, const std::string& why, const std::string& hint);
  void refuse_at(const Value& value, const std::string& what, const std::string& hint);

 private:
  const std::vector<Value>& list(std::string_view section) const;
  void apply(const Member& row);
  void left_over(const std::string& path, const Member& member);
  void model();

  const BackendFields& fields_;
  const Value& settings_;
  std::int64_t ranks_;
  Problems& problems_;
  std::string title_;
  Translation result_;
};

// Returns a string value.
Value text_value(std::string_view word, const Origin& origin);

}  // namespace primus::config
