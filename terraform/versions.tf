terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source = "hashicorp/google"
      # Checked against the schemas of 7.46.1 and 8.7.0, see tests/terraform.
      version = ">= 7.46, < 9"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
}
